//! The arguments of a micro-kernel: a few rows of the input times one panel of weights.

use crate::linear::output::Output;

/// The arguments of a micro-kernel, which fixes the number of rows.
pub(super) struct Tile {
    /// The first of the rows, each of `in_features` elements, not aligned.
    pub(super) x: *const u8,
    /// Bytes from one row to the next.
    pub(super) x_stride: usize,
    /// The panel's steps.
    pub(super) weights: *const u8,
    pub(super) in_features: usize,
    pub(super) output: Output,
}

/// # Safety
///
/// Every row, step and column that the tile names is valid, nothing else touches its part of the output, and the
/// machine has the instructions that the kernel is written in.
pub(super) type Multiply = unsafe fn(&Tile);

impl Tile {
    /// The last element of a row with an odd number of bfloat16 elements, as the low half of a pair.
    ///
    /// # Safety
    ///
    /// See `Multiply`; `row` is one of the tile's, and not empty.
    #[inline]
    pub(super) unsafe fn last_bfloat16(&self, row: usize) -> u32 {
        // SAFETY: as the caller promises.
        unsafe {
            u32::from(self.x.add(row * self.x_stride + (self.in_features - 1) * 2).cast::<u16>().read_unaligned())
        }
    }
}
