//! Where a micro-kernel puts its sums: some rows of one panel's columns.

use super::format::{Element, round_to_bfloat16};

/// Outputs that lie side by side in a panel: two vectors of AVX-512.
pub(crate) const PANEL: usize = 32;

#[derive(Clone, Copy)]
pub(crate) struct Output {
    /// Where the first row's first column goes.
    pub(crate) first: *mut u8,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
    /// How many of the panel's columns there are.
    pub(crate) columns: usize,
    pub(crate) element: Element,
}

impl Output {
    /// Round a row's sums and write them.
    ///
    /// # Safety
    ///
    /// The row is there, with so many columns, and nothing else touches them.
    #[inline]
    pub(crate) unsafe fn store(&self, row: usize, sums: &[f32; PANEL]) {
        // SAFETY: as the caller promises; an array has at least `columns` elements.
        unsafe {
            let out = self.first.add(row * self.stride);
            match self.element {
                Element::Float32 => std::ptr::copy_nonoverlapping(sums.as_ptr().cast(), out, self.columns * 4),
                Element::Bfloat16 => {
                    let rounded = sums.map(round_to_bfloat16);
                    std::ptr::copy_nonoverlapping(rounded.as_ptr().cast(), out, self.columns * 2);
                }
            }
        }
    }

    /// The rows from `row` on.
    ///
    /// # Safety
    ///
    /// The row is there.
    pub(crate) unsafe fn from_row(&self, row: usize) -> Self {
        // SAFETY: as the caller promises.
        Self { first: unsafe { self.first.add(row * self.stride) }, ..*self }
    }
}
