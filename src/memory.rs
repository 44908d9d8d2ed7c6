//! The allocator of the program: the system's, with large blocks kept for their next use.
//!
//! A training iteration allocates and frees the same large arrays over and over. The system's
//! allocator gives such blocks back to the operating system at once, which then clears and maps
//! every page of them anew in each iteration; on a CPU that took a quarter of an iteration of
//! CaffeNet. Here a freed block stays on a list of blocks of its size.
//!
//! Blocks of 64 KiB and more are rounded up to one of eight sizes per doubling, and begin on a cache
//! line; those of 4 MiB and more begin on a huge page, which Linux is asked to use. As many bytes are
//! kept as were ever in use at once; what is freed beyond that goes back to the system.
#![expect(unsafe_code, reason = "an allocator hands out raw memory")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Least bytes of a block that is kept.
const LEAST_BITS: u32 = 16;

/// Sizes per doubling, as a power of two.
const STEP_BITS: u32 = 3;

/// Sizes that blocks may have, up to the whole address space.
const CLASSES: usize = ((usize::BITS - LEAST_BITS) as usize) << STEP_BITS;

/// Bytes of a cache line; vector loads across two lines are slow.
const LINE: usize = 64;

/// Bytes of a huge page, and least bytes of a block that begins on one.
const HUGE_PAGE: usize = 2 << 20;
const LEAST_HUGE: usize = 4 << 20;

/// The allocator of every program that links this package.
#[global_allocator]
static ALLOCATOR: Recycling = Recycling {
    idle: [const { Mutex::new(Idle(ptr::null_mut())) }; CLASSES],
    in_use: AtomicUsize::new(0),
    most_in_use: AtomicUsize::new(0),
    kept: AtomicUsize::new(0),
};

struct Recycling {
    /// Free blocks, a list for each size.
    idle: [Mutex<Idle>; CLASSES],
    /// Bytes of large blocks that were handed out.
    in_use: AtomicUsize,
    /// The most there ever were.
    most_in_use: AtomicUsize,
    /// Bytes of the free blocks.
    kept: AtomicUsize,
}

/// The first of a list of free blocks, or null. Each holds the address of the next in its first
/// bytes.
struct Idle(*mut AtomicPtr<u8>);

// SAFETY: a block on the list belongs to nobody but the list, wherever it was allocated.
unsafe impl Send for Idle {}

/// The list and the layout of blocks of one size.
#[derive(Clone, Copy)]
struct Class {
    index: usize,
    block: Layout,
}

impl Class {
    /// The class that serves a layout; `None` for a small one, or one that is aligned unusually.
    fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        if size < 1 << LEAST_BITS || layout.align() > LINE {
            return None;
        }
        let step_bits = size.ilog2() - STEP_BITS;
        let steps = size.div_ceil(1 << step_bits);
        let index = ((size.ilog2() - LEAST_BITS) as usize) << STEP_BITS;
        let index = index + steps - (1 << STEP_BITS);
        let bytes = steps.checked_mul(1 << step_bits)?;
        let align = if bytes >= LEAST_HUGE { HUGE_PAGE } else { LINE };
        let block = Layout::from_size_align(bytes, align).ok()?;
        (index < CLASSES).then_some(Class { index, block })
    }
}

impl Recycling {
    fn list(&self, class: Class) -> MutexGuard<'_, Idle> {
        self.idle[class.index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of some class with arbitrary content; null if there is no memory.
    fn take(&self, class: Class) -> *mut u8 {
        let bytes = class.block.size();
        let in_use = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_in_use.fetch_max(in_use, Ordering::Relaxed);
        let mut list = self.list(class);
        let first = list.0;
        if first.is_null() {
            drop(list);
            // SAFETY: a class has blocks of more than 0 bytes.
            let block = unsafe { System.alloc(class.block) };
            prefer_huge_pages(block, class.block);
            return block;
        }
        // SAFETY: a block on the list is at least 64 KiB long, aligned to a cache line, and its
        // first bytes hold the pointer that `keep` wrote there.
        list.0 = unsafe { (*first).load(Ordering::Relaxed) }.cast();
        self.kept.fetch_sub(bytes, Ordering::Relaxed);
        first.cast()
    }

    /// Puts a block on the list of its class, or gives it back to the system.
    ///
    /// # Safety
    /// The block came from [`Recycling::take`] with this class, and nobody uses it any more.
    unsafe fn keep(&self, block: *mut u8, class: Class) {
        let bytes = class.block.size();
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
        let kept = self.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if kept > self.most_in_use.load(Ordering::Relaxed) {
            self.kept.fetch_sub(bytes, Ordering::Relaxed);
            // SAFETY: `take` got the block from the system with this layout.
            unsafe { System.dealloc(block, class.block) };
            return;
        }
        let mut list = self.list(class);
        let block: *mut AtomicPtr<u8> = block.cast();
        // SAFETY: the block is long enough, aligned to a cache line, and nobody else's.
        unsafe { block.write(AtomicPtr::new(list.0.cast())) };
        list.0 = block;
    }
}

// SAFETY: a layout is served either by the system alone or by blocks of its class, which are at
// least as long and as aligned as it asks for, and which are on no list while they are in use.
// Which of the two depends on the layout alone, so a block returns to where it came from.
unsafe impl GlobalAlloc for Recycling {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        match Class::of(layout) {
            Some(class) => self.take(class),
            // SAFETY: the caller vouches for the layout.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        let Some(class) = Class::of(layout) else {
            // SAFETY: the caller vouches for the layout.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let block = self.take(class);
        if !block.is_null() {
            // SAFETY: the block is at least as long as the layout.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, layout.size());
        match Class::of(layout) {
            // SAFETY: the caller vouches that `alloc` gave the block for this layout.
            Some(class) => unsafe { self.keep(block, class) },
            // SAFETY: as above.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller vouches that the new size is possible with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let (old_class, new_class) = (Class::of(layout), Class::of(new));
        let index = |class: Option<Class>| class.map(|class| class.index);
        if index(old_class) == index(new_class) {
            count(new_size, layout.size());
            return match old_class {
                Some(_) => block,
                // SAFETY: the caller vouches for block and layout, which are the system's.
                None => unsafe { System.realloc(block, layout, new_size) },
            };
        }
        // SAFETY: the caller vouches for both layouts and for the block, of which as many bytes
        // are copied as both have.
        unsafe {
            let target = self.alloc(new);
            if !target.is_null() {
                ptr::copy_nonoverlapping(block, target, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            target
        }
    }
}

/// Asks Linux to back a new block with huge pages, of which a processor can address more at once.
#[cfg(target_os = "linux")]
fn prefer_huge_pages(block: *mut u8, layout: Layout) {
    if layout.align() == HUGE_PAGE && !block.is_null() {
        // SAFETY: the range belongs to the block; this is advice, which changes no content.
        // A kernel that does not take it changes nothing.
        unsafe { libc::madvise(block.cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_block: *mut u8, _layout: Layout) {}

#[cfg(not(test))]
fn count(_allocated: usize, _freed: usize) {}

#[cfg(test)]
use counted::count;

/// Bytes that a thread has allocated and freed, for tests.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn count(allocated: usize, freed: usize) {
        let (before, after) = BYTES.get();
        BYTES.set((before + allocated, after + freed));
    }

    /// Bytes that this thread has allocated, and those of them that it has freed again.
    pub(crate) fn of_this_thread() -> (usize, usize) {
        BYTES.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_holds_what_was_asked_for_and_an_eighth_more_at_most(size in 1usize..1 << 40) {
            let layout = Layout::from_size_align(size, 4).unwrap();
            match Class::of(layout) {
                None => prop_assert!(size < 1 << LEAST_BITS),
                Some(class) => {
                    let bytes = class.block.size();
                    prop_assert!((size..=size + size / 8).contains(&bytes));
                    // Blocks of one list are equally long.
                    let whole = Layout::from_size_align(bytes, 8).unwrap();
                    let again = Class::of(whole).expect("it is not shorter");
                    prop_assert_eq!((again.index, again.block), (class.index, class.block));
                }
            }
        }

        #[test]
        fn vectors_keep_their_numbers_while_they_grow_and_shrink(
            lengths in prop::collection::vec(1usize..200_000, 1..12),
        ) {
            let mut numbers: Vec<u32> = Vec::new();
            for length in lengths {
                numbers.truncate(length);
                numbers.shrink_to_fit();
                numbers.extend((numbers.len()..length).map(|number| number as u32));
                prop_assert!(numbers.iter().enumerate().all(|(at, number)| *number == at as u32));
                // A used block must not shine through.
                prop_assert!(vec![0_u32; length].iter().all(|number| *number == 0));
            }
        }
    }

    #[test]
    fn blocks_of_several_threads_do_not_overlap() {
        std::thread::scope(|scope| {
            for mark in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let blocks = [70_000, 70_000, 300_000 + round].map(|n| vec![mark; n]);
                        std::thread::yield_now();
                        assert!(blocks.iter().flatten().all(|byte| *byte == mark));
                    }
                });
            }
        });
    }

    #[test]
    fn large_blocks_begin_on_a_cache_line() {
        for length in [70_000_usize, 1 << 20, 5 << 20] {
            let block = vec![1_u8; length];
            assert_eq!(block.as_ptr().addr() % LINE, 0);
        }
    }
}
