//! Working memory that outlives a call, so that a warm training loop allocates nothing.

use std::cell::RefCell;

/// Bytes of a cache line; buffers start on one, because vector loads across two lines are slow.
const LINE_BYTES: usize = 64;
const LINE_FLOATS: usize = LINE_BYTES / size_of::<f32>();

thread_local! {
    /// Buffers this thread is not using at the moment. A call takes one and puts it back, so a
    /// thread that is lent to another call while it waits finds a buffer of its own.
    static IDLE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
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
    if memory.len() < needed {
        // Nothing in the old buffer is worth the copy that growing in place would make.
        memory = vec![0.0; needed];
    }
    let start = memory.as_ptr().align_offset(LINE_BYTES).min(LINE_FLOATS);
    let mut rest = &mut memory[start..];
    let buffers = lengths.map(|length| {
        let (buffer, after) = std::mem::take(&mut rest).split_at_mut(padded(length));
        rest = after;
        &mut buffer[..length]
    });
    let result = work(buffers);
    IDLE.with_borrow_mut(|idle| idle.push(memory));
    result
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
