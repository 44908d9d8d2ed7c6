//! Reading and writing the tensors of Burn's CPU backends.

use burn::backend::ndarray::NdArrayTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, NdArray, TensorMetadata};
use burn::tensor::{TensorData, read_sync};

const IN_MEMORY: &str = "tensors of a CPU backend are always there";

/// A backend whose tensors lie in this process's memory.
pub(super) trait HostBackend: Backend {
    /// Shows the numbers of a tensor, row-major; copies them only if they lie in another order.
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R;

    /// Whether nobody else holds the numbers of a tensor, which lie row-major.
    fn is_own(tensor: &FloatTensor<Self>) -> bool;

    /// The numbers of a tensor, row-major; copies them only if somebody else holds them too.
    fn take(tensor: FloatTensor<Self>) -> Vec<f32> {
        if !Self::is_own(&tensor) {
            return Self::read(&tensor, <[f32]>::to_vec);
        }
        let data = read_sync(Self::float_into_data(tensor)).expect(IN_MEMORY);
        data.try_into_vec().expect("only tensors of f32 come here")
    }

    /// A tensor on the device of `like`.
    fn write(values: Vec<f32>, dims: &[usize], like: &FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_from_data(TensorData::new(values, dims), &like.device())
    }
}

impl HostBackend for Flex {
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R {
        if let Some(values) = tensor.as_slice() {
            return reader(values);
        }
        let tensor = tensor.to_contiguous();
        reader(tensor.as_slice().expect("a contiguous tensor of f32 is a slice"))
    }

    fn is_own(tensor: &FloatTensor<Self>) -> bool {
        tensor.is_unique() && tensor.as_slice::<f32>().is_some()
    }
}

impl HostBackend for NdArray {
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R {
        let NdArrayTensor::F32(storage) = tensor else {
            unreachable!("only tensors of f32 come here");
        };
        let view = storage.view();
        if let Some(values) = view.as_slice() {
            return reader(values);
        }
        if let ([rows, columns], Some(values)) = (view.shape(), view.as_slice_memory_order())
            && view.strides() == [1, rows.cast_signed()]
        {
            return reader(&transposed(values, *rows, *columns));
        }
        reader(&view.iter().copied().collect::<Vec<f32>>())
    }

    fn is_own(tensor: &FloatTensor<Self>) -> bool {
        let NdArrayTensor::F32(storage) = tensor else {
            unreachable!("only tensors of f32 come here");
        };
        storage.is_unique() && storage.view().as_slice().is_some()
    }
}

/// A `rows × columns` matrix, row-major, from one that is column-major.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const BLOCK: usize = 16;
    let mut target = vec![0.0; values.len()];
    for first_row in (0..rows).step_by(BLOCK) {
        for first_column in (0..columns).step_by(BLOCK) {
            for row in first_row..rows.min(first_row + BLOCK) {
                for column in first_column..columns.min(first_column + BLOCK) {
                    target[row * columns + column] = values[column * rows + row];
                }
            }
        }
    }
    target
}
