//! Weights of integers in groups of 32: input rows are made into integers, too, and each group's product is an exact
//! sum of integers.
//!
//! Of an output element every operation is specified: for each group in turn, `sum = fma(input scale × weight scale,
//! integer product, sum)`, and where weights have a minimum `sum = fma(minimum, input scale × sum of input integers,
//! sum)` after it, in float32. So it is bitwise the same in every micro-kernel, on every instruction set.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod panel;
mod portable;
mod quantise;
mod tile;

use super::format::{GROUP, GgmlType};
use super::integer_rows::IntegerFormat;
use crate::isa::Isa;
pub(super) use panel::{pack_panel, panel_bytes, unpack_column};
use tile::{Factors, Q4_0, Q4_1, Q8_0, Tile, Weights};

impl IntegerFormat for GgmlType {
    const CHUNK: usize = GROUP;
    const PLANES: usize = 1;
    const CHUNKS_HAVE_FACTORS: bool = true;
    type Factors = Factors;
    type Panel = *const u8;

    fn panel(self, _: usize, first: *const u8) -> *const u8 {
        first
    }

    #[inline(always)] // as the trait asks
    #[expect(clippy::inline_always, reason = "see above")]
    unsafe fn quantise<const BYTES: usize>(
        self,
        numbers: &[[u8; BYTES]],
        widen: impl Fn([u8; BYTES]) -> f32,
        integers: *mut i8,
        factors: *mut Factors,
    ) {
        // SAFETY: as the caller promises.
        unsafe { quantise::quantise(numbers, widen, self.offset(), integers, factors) };
    }

    unsafe fn multiply(self, isa: Isa, tile: &Tile) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Q8_0 => multiply::<Q8_0>(isa, tile),
                Self::Q4_0 => multiply::<Q4_0>(isa, tile),
                Self::Q4_1 => multiply::<Q4_1>(isa, tile),
            }
        }
    }
}

/// # Safety
///
/// As for `IntegerFormat::multiply`; the panel's weights are these.
unsafe fn multiply<W: Weights>(isa: Isa, tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => amx::multiply::<W>(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => avx512::multiply::<W>(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::multiply::<W>(tile),
            _ => portable::multiply::<W>(tile),
        }
    }
}
