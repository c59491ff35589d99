//! Weights of integers in groups of 32: input rows are quantised to integers, too, and each group's product is an exact
//! sum of integers.
//!
//! Every operation of an output element is specified: for each group in turn, `sum = fma(input scale × weight scale,
//! integer product, sum)`, and for weights with a minimum `sum = fma(minimum, input scale × sum of input integers,
//! sum)` after it, in float32; a group with two scales does each for its first half, then for its second. A scale of a
//! super-block is the exact product of its two parts. So the result is bitwise the same in every micro-kernel, on every
//! instruction set.
//!
//! GGUF has many formats, but they share few inner loops: all are groups of 32 integers of 4, 5, 6 or 8 bits, with
//! factors in one of three forms (see `Encoding`). AVX2, and AVX-512 for up to `MAX_PACKED_ROWS` rows, unpack a panel in
//! registers. AMX, AVX-512 for more rows, and plain Rust first expand it to bytes and float32. IQ1 to IQ3, which look up
//! 4 or 8 integers at a time, are always expanded (see `grid`).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod expand;
pub(super) mod grid;
mod panel;
mod portable;
mod quantise;
mod tile;

use super::format::{GROUP, GgmlType};
use super::integer_rows::IntegerFormat;
use super::{Content, Linear};
use crate::isa::Isa;
use tile::{InputFactors, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Tile, Weights};

pub(super) fn panel_bytes(linear: &Linear, format: GgmlType) -> usize {
    if format.has_grid() { grid::panel_bytes(format, linear.in_features) } else { panel::panel_bytes(linear, format) }
}

/// Pack rows of the matrix as the columns of a zeroed panel. Gives the first whose scales are not finite.
pub(super) fn pack_panel(format: GgmlType, rows: &[Option<Content>], panel: &mut [u8]) -> Option<usize> {
    if format.has_grid() { grid::pack_panel(format, rows, panel) } else { panel::pack_panel(format, rows, panel) }
}

/// Convert one column of a panel, which is a row of the matrix, to elements.
pub(super) fn unpack_column(linear: &Linear, format: GgmlType, panel: &[u8], column: usize, out: &mut [u8]) {
    let unpack = if format.has_grid() { grid::unpack_column } else { panel::unpack_column };
    unpack(linear, format, panel, column, out);
}

/// The numbers of a block's group by number.
pub(super) fn group_numbers(format: GgmlType, block: &[u8], number: usize, out: &mut [f32; GROUP]) {
    let numbers = if format.has_grid() { grid::group_numbers } else { blocks::group_numbers };
    numbers(format, block, number, out);
}

impl IntegerFormat for GgmlType {
    const CHUNK: usize = GROUP;
    const PLANES: usize = 1;
    const CHUNKS_HAVE_FACTORS: bool = true;
    type Factors = InputFactors;
    type Panel = *const u8;

    fn panel(self, _: usize, first: *const u8) -> *const u8 {
        first
    }

    #[inline(always)] // as the trait requires
    #[expect(clippy::inline_always, reason = "see above")]
    unsafe fn quantise<const BYTES: usize>(
        self,
        numbers: &[[u8; BYTES]],
        widen: impl Fn([u8; BYTES]) -> f32,
        integers: *mut i8,
        factors: *mut InputFactors,
    ) {
        // SAFETY: as the caller promises.
        unsafe { quantise::quantise(numbers, widen, self.encoding(), integers, factors) };
    }

    unsafe fn multiply(self, isa: Isa, tile: &Tile) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Q8_0 => multiply::<Q8_0>(isa, tile),
                Self::Q4_0 => multiply::<Q4_0>(isa, tile),
                Self::Q4_1 => multiply::<Q4_1>(isa, tile),
                Self::Q5_0 => multiply::<Q5_0>(isa, tile),
                Self::Q5_1 => multiply::<Q5_1>(isa, tile),
                Self::Iq4Nl => multiply::<Iq4Nl>(isa, tile),
                Self::Mxfp4 => multiply::<Mxfp4>(isa, tile),
                Self::Q2K => multiply::<Q2K>(isa, tile),
                Self::Q3K => multiply::<Q3K>(isa, tile),
                Self::Q4K => multiply::<Q4K>(isa, tile),
                Self::Q5K => multiply::<Q5K>(isa, tile),
                Self::Q6K => multiply::<Q6K>(isa, tile),
                Self::Iq4Xs => multiply::<Iq4Xs>(isa, tile),
                Self::Iq2Xxs | Self::Iq3Xxs | Self::Iq3S | Self::Iq1S => grid::multiply::<1>(self, isa, tile),
                Self::Iq2Xs | Self::Iq2S | Self::Iq1M => grid::multiply::<2>(self, isa, tile),
            }
        }
    }
}

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel's weights are these.
unsafe fn multiply<W: Weights>(isa: Isa, tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if tile.rows >= amx::MIN_ROWS => {
                expand::expanded::<W>(tile, isa, |tile| amx::multiply::<W::Expanded>(tile));
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if tile.rows <= avx512::MAX_PACKED_ROWS => {
                avx512::multiply::<W>(tile);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                expand::expanded::<W>(tile, isa, |tile| avx512::multiply::<W::Expanded>(tile));
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => avx2::multiply_vnni::<W>(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::multiply::<W>(tile),
            _ => expand::expanded::<W>(tile, isa, |tile| portable::multiply::<W::Expanded>(tile)),
        }
    }
}
