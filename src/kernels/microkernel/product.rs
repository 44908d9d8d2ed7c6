//! Matrix products by the `gemm` crate, for any processor.

/// A matrix in a slice: element (`row`, `column`) at `row·row_pitch + column·column_pitch`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_pitch: usize,
    column_pitch: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix at the start of `values`.
    pub fn rows(values: &'a [f32], rows: usize, columns: usize) -> Self {
        let values = &values[..rows * columns];
        Self { values, rows, columns, row_pitch: columns, column_pitch: 1 }
    }

    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_pitch: self.column_pitch,
            column_pitch: self.row_pitch,
            ..self
        }
    }
}

/// A matrix product for the `gemm` crate.
pub struct Product<'a> {
    pub left: Matrix<'a>,
    pub right: Matrix<'a>,
    /// Row-major.
    pub output: &'a mut [f32],
    /// Whether to add to what the output holds instead of overwriting it.
    pub accumulate: bool,
    pub threads: usize,
}

/// `output = left · right`, on any processor.
pub fn multiply(product: Product<'_>) {
    let Product { left, right, output, accumulate, threads } = product;
    assert_eq!(left.columns, right.rows);
    assert!(output.len() >= left.rows * right.columns);
    let parallelism =
        if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    // A pitch is below the length of its slice, which is at most `isize::MAX` bytes.
    let pitch = |pitch: usize| pitch.cast_signed();
    // SAFETY: the matrices lie within their slices: `Matrix::rows` cuts the inputs to size, a
    // transposed matrix has the same elements, and the output's length was compared above.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            output.as_mut_ptr(),
            1,
            pitch(right.columns),
            accumulate,
            left.values.as_ptr(),
            pitch(left.column_pitch),
            pitch(left.row_pitch),
            right.values.as_ptr(),
            pitch(right.column_pitch),
            pitch(right.row_pitch),
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
