//! Small symmetric linear systems, as regressions need them.
//!
//! Written out because it is forty lines, and a crate of linear algebra would add a minute to the
//! build.

/// The lower factor L of a symmetric positive definite matrix A = L·Lᵀ, `[n, n]` by rows.
#[derive(Clone, Debug)]
pub(super) struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// The factor of the matrix with these entries; `None` where it is not positive definite to
    /// rounding. Only entries on and below the diagonal are asked for.
    pub(super) fn of(n: usize, entry: impl Fn(usize, usize) -> f64) -> Option<Self> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(n);
        for i in 0..n {
            let mut row: Vec<f64> = Vec::with_capacity(i + 1);
            for j in 0..i {
                row.push((entry(i, j) - dot(&row, &rows[j][..j])) / rows[j][j]);
            }
            let square = entry(i, i) - dot(&row, &row);
            if !(square.is_finite() && square > 0.0) {
                return None;
            }
            row.push(square.sqrt());
            rows.push(row);
        }
        Some(Cholesky { rows })
    }

    /// x with A·x = b.
    pub(super) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x: Vec<f64> = Vec::with_capacity(b.len());
        for (row, b) in self.rows.iter().zip(b) {
            let i = x.len();
            x.push((b - dot(&row[..i], &x)) / row[i]);
        }
        for i in (0..x.len()).rev() {
            let above: f64 = (i + 1..x.len()).map(|j| self.rows[j][i] * x[j]).sum();
            x[i] = (x[i] - above) / self.rows[i][i];
        }
        x
    }

    /// ln det A.
    pub(super) fn ln_determinant(&self) -> f64 {
        self.rows.iter().enumerate().map(|(i, row)| 2.0 * row[i].ln()).sum()
    }
}

/// Σ aᵢ·bᵢ over the shorter of the two.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// c that minimises Σ (rowᵢ·c − valueᵢ)² + Σ ridgeⱼ·cⱼ² by the normal equations; `None` where the
/// columns are dependent to rounding.
pub(super) fn least_squares(rows: &[Vec<f64>], values: &[f64], ridge: &[f64]) -> Option<Vec<f64>> {
    let n = ridge.len();
    let entry = |i: usize, j: usize| {
        let own = if i == j { ridge[i] } else { 0.0 };
        rows.iter().map(|row| row[i] * row[j]).sum::<f64>() + own
    };
    let right: Vec<f64> =
        (0..n).map(|i| rows.iter().zip(values).map(|(row, value)| row[i] * value).sum()).collect();
    Some(Cholesky::of(n, entry)?.solve(&right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_solution_solves_and_the_determinant_is_that_of_the_matrix() {
        let a = [[4.0, 2.0, 0.6], [2.0, 5.0, 1.0], [0.6, 1.0, 3.0]];
        let factor = Cholesky::of(3, |i, j| a[i][j]).expect("positive definite");
        let x = factor.solve(&[1.0, 2.0, 3.0]);
        for (row, b) in a.iter().zip([1.0, 2.0, 3.0]) {
            assert!((dot(row, &x) - b).abs() < 1e-12);
        }
        let determinant: f64 = 4.0 * (15.0 - 1.0) - 2.0 * (6.0 - 0.6) + 0.6 * (2.0 - 3.0);
        assert!((factor.ln_determinant() - determinant.ln()).abs() < 1e-12);
        assert!(Cholesky::of(2, |_, _| 1.0).is_none(), "it is singular");
    }

    #[test]
    fn least_squares_recover_what_made_the_values() {
        let rows: Vec<Vec<f64>> =
            (1..=5).map(|i| vec![1.0, f64::from(i), f64::from(i * i)]).collect();
        let values: Vec<f64> = rows.iter().map(|row| dot(row, &[2.0, -1.0, 0.5])).collect();
        let found = least_squares(&rows, &values, &[0.0; 3]).expect("independent");
        assert!((found[0] - 2.0).abs() < 1e-9 && (found[1] + 1.0).abs() < 1e-9);
        let twice: Vec<Vec<f64>> = rows.iter().map(|row| vec![row[1], row[1]]).collect();
        assert!(least_squares(&twice, &values, &[0.0; 2]).is_none());
        assert!(least_squares(&twice, &values, &[1e-3; 2]).is_some(), "a ridge helps");
    }
}
