//! Weights of 8 bits with one scale per output; inputs of 15 bits with one scale per row, in two planes of 8 bits.
//!
//! An input is `scale × (128 × high + low)`, a weight `scale × integer`. The sums of products of the high and of the
//! low integers are exact; an output element is `(input scale × weight scale) × fma(128, high sum, low sum)`, in
//! float32, each sum rounded to it first. So it is bitwise the same in every micro-kernel, on every instruction set,
//! and whether weights are stored in 8 bits or in GGUF's 4, which give the same integers: see `panel`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod nibbles;
mod panel;
mod portable;
mod quantise;
mod tile;

use super::format::Int8Source;
use super::integer_rows::IntegerFormat;
use crate::isa::Isa;
pub(super) use panel::{pack_blocks, pack_integers, pack_numbers, panel_bytes, unpack_column};
use tile::{Bytes, CHUNK, InputFactors, Nibbles, PLANES, Panel, Tile, Weights};

impl IntegerFormat for Int8Source {
    const CHUNK: usize = CHUNK;
    const PLANES: usize = PLANES;
    const CHUNKS_HAVE_FACTORS: bool = false;
    type Factors = InputFactors;
    type Panel = Panel;

    fn panel(self, in_features: usize, first: *const u8) -> Panel {
        Panel { integers: first, scales: first.wrapping_add(panel::integer_bytes(in_features, self)) }
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
        unsafe { factors.write(quantise::quantise(numbers, widen, integers)) };
    }

    unsafe fn multiply(self, isa: Isa, tile: &Tile) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Int8Source::Elements => multiply::<Bytes>(isa, tile),
                Int8Source::Q4_0 | Int8Source::Q4_1 => multiply::<Nibbles>(isa, tile),
            }
        }
    }
}

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is so stored.
unsafe fn multiply<W: Weights>(isa: Isa, tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if tile.rows >= amx::MIN_ROWS => amx::multiply::<W>(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::multiply::<W>(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => nibbles::in_bytes::<W>(tile, isa, |tile| avx2::multiply_vnni(tile)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => nibbles::in_bytes::<W>(tile, isa, |tile| avx2::multiply(tile)),
            _ => nibbles::in_bytes::<W>(tile, isa, |tile| portable::multiply(tile)),
        }
    }
}
