//! What one call of a micro-kernel computes: a few rows of the input times one panel of weights.

/// Outputs that lie side by side in a panel: two vectors of AVX-512.
pub(crate) const PANEL: usize = 32;

/// The arguments of a micro-kernel, whose number of rows is its own.
pub(crate) struct Tile {
    /// The first of the rows, each of `in_features` elements, not aligned.
    pub(crate) x: *const u8,
    /// Bytes from one row to the next.
    pub(crate) x_stride: usize,
    /// The panel's steps.
    pub(crate) weights: *const u8,
    pub(crate) in_features: usize,
    /// Where the first row's first column goes.
    pub(crate) out: *mut u8,
    /// Bytes from one row to the next.
    pub(crate) out_stride: usize,
    /// How many of the panel's columns there are.
    pub(crate) columns: usize,
}

/// # Safety
///
/// Every row, step and column that the tile names is there, nothing else touches its part of the output, and the machine
/// has the instructions that the kernel is written in.
pub(crate) type Multiply = unsafe fn(&Tile);

impl Tile {
    /// # Safety
    ///
    /// As for `Multiply`; `row` is one of the tile's.
    #[inline]
    pub(crate) unsafe fn store_float32(&self, row: usize, sums: &[f32; PANEL]) {
        // SAFETY: as the caller promises.
        unsafe {
            let out = self.out.add(row * self.out_stride);
            std::ptr::copy_nonoverlapping(sums.as_ptr().cast(), out, self.columns * 4);
        }
    }

    /// # Safety
    ///
    /// As for `Multiply`; `row` is one of the tile's.
    #[inline]
    pub(crate) unsafe fn store_bfloat16(&self, row: usize, sums: &[f32; PANEL]) {
        let rounded = sums.map(round_to_bfloat16);
        // SAFETY: as the caller promises.
        unsafe {
            let out = self.out.add(row * self.out_stride);
            std::ptr::copy_nonoverlapping(rounded.as_ptr().cast(), out, self.columns * 2);
        }
    }

    /// The last element of a row with an odd number of bfloat16 elements, as the low half of a pair.
    ///
    /// # Safety
    ///
    /// As for `Multiply`; `row` is one of the tile's, and not empty.
    #[inline]
    pub(crate) unsafe fn last_bfloat16(&self, row: usize) -> u32 {
        // SAFETY: as the caller promises.
        unsafe {
            u32::from(self.x.add(row * self.x_stride + (self.in_features - 1) * 2).cast::<u16>().read_unaligned())
        }
    }
}

/// To the nearest, to even where two are equally near; not a number stays so.
#[inline]
pub(crate) fn round_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
}

/// A table of one micro-kernel for each number of rows.
macro_rules! for_rows {
    ($kernel:ident: $($rows:literal)*) => { [$($kernel::<$rows>),*] };
}
pub(crate) use for_rows;
