//! Many requests one after another leave nothing behind: no block, no request, and no memory that grows with their
//! number. `cargo run --release --example million` does the same for longer, and prints the process's memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use load::Load;

mod load;

const REQUESTS: u64 = 10_000;

#[test]
fn requests_that_have_ended_leave_nothing_behind() {
    let mut load = Load::new();
    load.serve(REQUESTS);
    let first = ALLOCATED.load(Ordering::Relaxed);
    load.serve(REQUESTS);
    let second = ALLOCATED.load(Ordering::Relaxed);

    let stats = load.scheduler().stats();
    assert_eq!((stats.num_used_blocks, stats.num_requests, stats.num_waiting, stats.num_running), (0, 0, 0, 0));
    assert!(load.scheduler().pending_clients().is_empty());
    load.scheduler().audit().expect("the books add up");
    // A vector may double once more for a peak that the first half did not have; 10,000 requests would be megabytes.
    assert!(
        second < first + 100_000,
        "{first} bytes were allocated after {REQUESTS} requests, {second} after twice that"
    );

    // The load reaches the states that might leave something behind.
    assert!(stats.num_preemptions > 0 && stats.prefix_hits > 0 && load.num_tokens > REQUESTS, "{stats:?}");
}

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of allocated bytes.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes on to `System` unchanged, which keeps the contract; the count touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
