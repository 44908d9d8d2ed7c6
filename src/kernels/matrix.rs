//! A plain matrix product, the yardstick of the others.

use super::KernelError;
use super::microkernel::{Matrix, Product, multiply};
use super::parallel::threads;

/// `output = left · right` for row-major matrices `left` rows × depth, `right` depth × columns and
/// `output` rows × columns, by the `gemm` crate on the threads of the current rayon pool.
///
/// # Errors
/// [`KernelError::WrongLength`] for a slice that is no such matrix.
///
/// ```
/// let mut output = [0.0; 2];
/// omnivore::kernels::matrix_product([1, 2, 2], &[1.0, 2.0], &[3.0, 4.0, 5.0, 6.0], &mut output)?;
/// assert_eq!(output, [13.0, 16.0]);
/// # Ok::<(), omnivore::kernels::KernelError>(())
/// ```
pub fn matrix_product(
    [rows, depth, columns]: [usize; 3],
    left: &[f32],
    right: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    let lengths = [
        ("left matrix", left.len(), rows.saturating_mul(depth)),
        ("right matrix", right.len(), depth.saturating_mul(columns)),
        ("output", output.len(), rows.saturating_mul(columns)),
    ];
    if let Some((slice, actual, expected)) = lengths.into_iter().find(|(_, a, e)| a != e) {
        let shape = format!("a product of {rows}x{depth} by {depth}x{columns}");
        return Err(KernelError::WrongLength { shape, slice, actual, expected });
    }
    multiply(Product {
        left: Matrix::rows(left, rows, depth),
        right: Matrix::rows(right, depth, columns),
        output,
        accumulate: false,
        threads: threads(),
    });
    Ok(())
}
