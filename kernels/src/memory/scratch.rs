//! Scratch memory of kernels, kept from one call to the next. Knows no kernel.

use std::cell::RefCell;

thread_local! {
    static OF_THREAD: RefCell<Scratch> = RefCell::default();
}

/// The thread's own memory of `floats` floats, uninitialised, from the start of a cache line on; valid until the next
/// call.
pub(crate) fn of_thread(floats: usize) -> *mut f32 {
    OF_THREAD.with_borrow_mut(|scratch| scratch.bytes(floats * size_of::<f32>()).as_mut_ptr().cast())
}

/// A buffer as large as the largest request so far.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Line>);

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Scratch {
    /// At least `length` bytes with arbitrary contents, from the start of a cache line on.
    pub(crate) fn bytes(&mut self, length: usize) -> &mut [u8] {
        let lines = length.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0 = vec![Line([0; 64]); lines];
        }
        // SAFETY: a line is 64 initialised bytes, and they lie one after the other.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), lines * size_of::<Line>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_while_it_is_large_enough() {
        let mut scratch = Scratch::default();
        assert!(scratch.bytes(0).is_empty());
        let first = scratch.bytes(100);
        assert_eq!((first.len(), first.as_ptr() as usize % 64), (128, 0));
        first[127] = 7;
        assert_eq!(scratch.bytes(128)[127], 7);
        assert_eq!(scratch.bytes(129).len(), 192);
    }
}
