//! Minimisation without derivatives.

/// The least value found, and where, by Nelder and Mead's simplex from a point and one step along
/// each axis, in at most so many evaluations. Deterministic.
///
/// Source: Nelder, Mead, "A simplex method for function minimization", 1965, with coefficients
/// 1, 2, ½ and ½.
pub(super) fn nelder_mead<const N: usize>(
    of: impl Fn(&[f64; N]) -> f64,
    from: &[f64; N],
    steps: &[f64; N],
    n_evaluations: usize,
) -> (f64, [f64; N]) {
    let mut simplex: Vec<(f64, [f64; N])> = vec![(of(from), *from)];
    for axis in 0..N {
        let mut corner = *from;
        corner[axis] += steps[axis];
        simplex.push((of(&corner), corner));
    }
    let mut evaluated = N + 1;
    let between = |a: &[f64; N], b: &[f64; N], part: f64| {
        let mut point = *a;
        point.iter_mut().zip(b).for_each(|(x, y)| *x += part * (y - *x));
        point
    };
    while evaluated < n_evaluations {
        simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
        let worst = simplex[N];
        let mut centre = [0.0; N];
        for (_, corner) in &simplex[..N] {
            #[expect(clippy::cast_precision_loss, reason = "a handful of axes")]
            centre.iter_mut().zip(corner).for_each(|(sum, x)| *sum += x / N as f64);
        }
        let mut tried = |part: f64| {
            evaluated += 1;
            let point = between(&centre, &worst.1, part);
            (of(&point), point)
        };
        let reflected = tried(-1.0);
        let better = if reflected.0 < simplex[0].0 {
            let expanded = tried(-2.0);
            Some(if expanded.0 < reflected.0 { expanded } else { reflected })
        } else if reflected.0 < simplex[N - 1].0 {
            Some(reflected)
        } else {
            let contracted = tried(if reflected.0 < worst.0 { -0.5 } else { 0.5 });
            (contracted.0 < worst.0.min(reflected.0)).then_some(contracted)
        };
        match better {
            Some(corner) => simplex[N] = corner,
            None => {
                let best = simplex[0].1;
                for corner in &mut simplex[1..] {
                    let point = between(&best, &corner.1, 0.5);
                    *corner = (of(&point), point);
                    evaluated += 1;
                }
            }
        }
    }
    simplex.sort_by(|a, b| a.0.total_cmp(&b.0));
    simplex[0]
}

#[cfg(test)]
mod tests {
    use super::nelder_mead;

    #[test]
    fn the_minimum_of_a_narrow_curved_valley_is_found() {
        let valley =
            |at: &[f64; 2]| (1.0 - at[0]).powi(2) + 100.0 * (at[1] - at[0] * at[0]).powi(2);
        let (least, at) = nelder_mead(valley, &[-1.2, 1.0], &[0.5, 0.5], 400);
        assert!(least < 1e-8, "{least} {at:?}");
        assert!((at[0] - 1.0).abs() < 1e-3 && (at[1] - 1.0).abs() < 1e-3, "{at:?}");
    }
}
