//! Stability decided without any of the formulas under test.

/// Spectral radius of the linear map `apply` on vectors of length `size`.
///
/// By Gelfand's formula, `‖M^n‖^(1/n)` with `n = 2^40` through repeated squaring. The error is
/// about `ln(condition · n) / n`, below 1e-9.
pub fn spectral_radius(size: usize, apply: impl Fn(&[f64]) -> Vec<f64>) -> f64 {
    let mut power = matrix_of(size, apply);
    let (mut log_norm, mut exponent) = (0.0, 1.0);
    for _ in 0..=40 {
        let norm = power.iter().map(|entry| entry.abs()).fold(0.0, f64::max);
        if norm <= 0.0 {
            return 0.0;
        }
        log_norm += norm.ln() / exponent;
        power.iter_mut().for_each(|entry| *entry /= norm);
        power = square(&power, size);
        exponent *= 2.0;
    }
    log_norm.exp()
}

/// The matrix of `apply`, row-major [size, size], column by column from the unit vectors.
fn matrix_of(size: usize, apply: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut matrix = vec![0.0; size * size];
    for column in 0..size {
        let mut unit = vec![0.0; size];
        unit[column] = 1.0;
        for (row, entry) in apply(&unit).into_iter().enumerate() {
            matrix[row * size + column] = entry;
        }
    }
    matrix
}

fn square(matrix: &[f64], size: usize) -> Vec<f64> {
    let mut product = vec![0.0; size * size];
    for row in 0..size {
        for inner in 0..size {
            for column in 0..size {
                product[row * size + column] +=
                    matrix[row * size + inner] * matrix[inner * size + column];
            }
        }
    }
    product
}

/// Whether all roots of the polynomial lie inside the unit circle, by the Schur-Cohn recursion.
///
/// Coefficients from the highest power down. Each round subtracts the reversed polynomial times
/// the ratio of the ends, which lowers the degree by one and keeps the answer as long as the last
/// coefficient is smaller than the first.
pub fn all_roots_inside_the_unit_circle(coefficients: &[f64]) -> bool {
    let mut polynomial = coefficients.to_vec();
    while polynomial.len() > 1 {
        let (first, last) = (polynomial[0], polynomial[polynomial.len() - 1]);
        if last.abs() >= first.abs() {
            return false;
        }
        let ratio = last / first;
        let reversed: Vec<f64> = polynomial.iter().rev().copied().collect();
        polynomial.iter_mut().zip(reversed).for_each(|(entry, other)| *entry -= ratio * other);
        polynomial.pop();
    }
    true
}

#[test]
fn the_spectral_radius_of_known_matrices_is_found() {
    // A rotation by 1 radian, scaled by 0.9; a triangle whose power grows like n·0.5^n.
    let (sine, cosine) = 1.0_f64.sin_cos();
    let rotation =
        |v: &[f64]| vec![0.9 * (cosine * v[0] - sine * v[1]), 0.9 * (sine * v[0] + cosine * v[1])];
    let triangle = |v: &[f64]| vec![0.5 * v[0] + 3.0 * v[1], 0.5 * v[1]];
    assert!((spectral_radius(2, rotation) - 0.9).abs() < 1e-9);
    assert!((spectral_radius(2, triangle) - 0.5).abs() < 1e-9);
}

#[test]
fn a_root_just_inside_and_just_outside_the_circle_are_told_apart() {
    // (z - root)(z² + 0.25), expanded.
    let with_root = |root: f64| [1.0, -root, 0.25, -0.25 * root];
    assert!(all_roots_inside_the_unit_circle(&with_root(1.0 - 1e-9)));
    assert!(!all_roots_inside_the_unit_circle(&with_root(1.0 + 1e-9)));
    assert!(!all_roots_inside_the_unit_circle(&with_root(-1.0 - 1e-9)));
}
