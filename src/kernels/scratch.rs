//! Working memory that outlives a call, so that a warm training loop allocates nothing.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a cache line; buffers start on one, because vector loads across two lines are slow.
const LINE_BYTES: usize = 64;
const LINE_FLOATS: usize = LINE_BYTES / size_of::<f32>();

/// Bytes of all [`Memory`] there is.
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Memory this thread is not using at the moment. A call takes one piece and puts it back, so
    /// a thread that is lent to another call while it waits finds a piece of its own.
    static IDLE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// Memory that is counted.
#[derive(Default)]
struct Memory(Vec<f32>);

impl Memory {
    fn new(length: usize) -> Self {
        let memory = Self(vec![0.0; length]);
        BYTES.fetch_add(memory.bytes(), Ordering::Relaxed);
        memory
    }

    fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Bytes of working memory that the kernels hold on all threads, in use or kept for the next call.
///
/// After [`release_scratch`] and one call of a kernel this is what the call needed.
pub fn scratch_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Gives back the working memory that this thread and those of the current rayon pool keep.
pub fn release_scratch() {
    let release = || IDLE.with_borrow_mut(Vec::clear);
    rayon::broadcast(|_| release());
    release();
}

/// Gives `work` one buffer per length, each aligned to a cache line.
///
/// What the buffers hold is whatever an earlier call left there.
pub(super) fn with_buffers<const N: usize, R>(
    lengths: [usize; N],
    work: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    let mut memory = IDLE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let needed = lengths.iter().map(|&length| padded(length)).sum::<usize>() + LINE_FLOATS;
    if memory.0.len() < needed {
        // Nothing in the old memory is worth the copy that growing in place would make.
        drop(memory);
        memory = Memory::new(needed);
    }
    let start = memory.0.as_ptr().align_offset(LINE_BYTES).min(LINE_FLOATS);
    let mut rest = &mut memory.0[start..];
    let buffers = lengths.map(|length| {
        let (buffer, after) = std::mem::take(&mut rest).split_at_mut(padded(length));
        rest = after;
        &mut buffer[..length]
    });
    let result = work(buffers);
    IDLE.with_borrow_mut(|idle| idle.push(memory));
    result
}

/// Bytes that this thread keeps.
#[cfg(test)]
pub(super) fn bytes_of_this_thread() -> usize {
    IDLE.with_borrow(|idle| idle.iter().map(|memory| size_of_val(&*memory.0)).sum())
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(LINE_FLOATS)
}

#[cfg(test)]
mod tests {
    use super::with_buffers;

    #[test]
    fn nested_calls_get_separate_aligned_buffers() {
        with_buffers([3, 5], |[first, second]| {
            first.fill(1.0);
            second.fill(2.0);
            with_buffers([100], |[inner]| inner.fill(9.0));
            assert_eq!(first, [1.0; 3]);
            assert_eq!(second, [2.0; 5]);
            assert_eq!(second.as_ptr().align_offset(64), 0);
        });
    }

    #[test]
    fn a_second_call_reuses_the_memory_of_the_first() {
        let place = |[buffer]: [&mut [f32]; 1]| buffer.as_ptr().addr();
        let first = with_buffers([1000], place);
        assert_eq!(with_buffers([1000], place), first);
        assert_eq!(with_buffers([10], place), first);
    }
}
