//! IQ1 to IQ3, whose integers are looked up: an index stands for the magnitudes of 4 or 8 features, of which a grid has
//! 256 to 2,048. Any form without indices takes a third more memory, so panels keep them, and each product first
//! expands its panel to bytes and float32.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod blocks;
mod panel;
pub(in crate::linear) mod tables;

use super::expand;
use super::tile::{Expanded, Tile};
use crate::isa::Isa;
use crate::linear::format::{GROUP, GgmlType, SUPER_GROUPS};
use crate::linear::output::PANEL;
pub(super) use blocks::group_numbers;
pub(super) use panel::{pack_panel, panel_bytes, unpack_column};
use tables::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, SIGNS};

/// Features in a byte of signs.
const SIGNED: usize = 8;
/// Indices of a group, at most.
const MAX_INDICES: usize = 8;
/// The bit of an index that lowers IQ1's numbers.
const LOWERED: u16 = 1 << 11;
/// 128 in each byte, which is added to all integers.
const OFFSETS: u64 = 0x8080_8080_8080_8080;

/// The form of a format's groups in a panel.
#[derive(Clone, Copy)]
struct Layout {
    /// Features of an index.
    features: usize,
    /// Bits of an index above 8.
    high_bits: usize,
    /// Whether each feature has a sign. If not, its number is 8 times that of the grid and 1 more, or with `LOWERED` 1
    /// less: ggml adds or subtracts an eighth.
    has_signs: bool,
    /// Scales of a group: one, or one for each half.
    scales: usize,
    /// The number by which the block's float16 is multiplied.
    unit: f32,
}

const fn layout(format: GgmlType) -> Layout {
    let (features, high_bits, has_signs, unit) = match format {
        GgmlType::Iq2Xxs => (8, 0, true, 0.125),
        GgmlType::Iq2Xs => (8, 1, true, 0.125),
        GgmlType::Iq2S => (8, 2, true, 0.125),
        GgmlType::Iq3Xxs => (4, 0, true, 0.25),
        GgmlType::Iq3S => (4, 1, true, 1.0),
        GgmlType::Iq1S | GgmlType::Iq1M => (8, 4, false, 0.125),
        _ => panic!("a format without a grid"),
    };
    Layout { features, high_bits, has_signs, scales: format.encoding().scales_per_group, unit }
}

impl Layout {
    const fn indices(self) -> usize {
        GROUP / self.features
    }
}

/// A group of a block.
struct Group {
    indices: [u16; MAX_INDICES],
    signs: [u8; GROUP / SIGNED],
    /// The scale of each half, or of the whole, is `2 × scale + 1` times the block's.
    scales: [u8; 2],
}

/// A group's integers with 128 added, 8 in each number, the first in the lowest byte.
fn integers(format: GgmlType, group: &Group) -> [u64; GROUP / 8] {
    let index = |at: usize| usize::from(group.indices[at]);
    let two = |grid: &[u32], at: usize| u64::from(grid[index(2 * at)]) | u64::from(grid[index(2 * at + 1)]) << 32;
    std::array::from_fn(|at| {
        let magnitudes = match format {
            GgmlType::Iq2Xxs => IQ2_XXS[index(at)],
            GgmlType::Iq2Xs => IQ2_XS[index(at)],
            GgmlType::Iq2S => IQ2_S[index(at)],
            GgmlType::Iq3Xxs => two(&IQ3_XXS, at),
            GgmlType::Iq3S => two(&IQ3_S, at),
            _ => return shifted(IQ1[usize::from(group.indices[at] % LOWERED)], group.indices[at] & LOWERED != 0),
        };
        signed(magnitudes, SIGNS[usize::from(group.signs[at])])
    })
}

/// Magnitudes up to 127 with signs of `SIGNS`, and 128 added: no byte overflows into the next.
fn signed(magnitudes: u64, signs: u64) -> u64 {
    (magnitudes ^ signs) + (OFFSETS - signs)
}

fn shifted(numbers: u64, is_lowered: bool) -> u64 {
    const ONES: u64 = OFFSETS >> 7;
    if is_lowered { numbers - ONES } else { numbers + ONES }
}

/// Multiply a tile by its panel of this format.
///
/// # Safety
///
/// See `IntegerFormat::multiply`; the format's groups have so many scales.
pub(super) unsafe fn multiply<const SCALES: usize>(format: GgmlType, isa: Isa, tile: &Tile) {
    let bytes = panel_bytes(format, GROUP * tile.num_chunks);
    // SAFETY: as the caller promises.
    let panel = unsafe { std::slice::from_raw_parts(tile.panel, bytes) };
    let expanded_bytes = format.encoding().panel_bytes(tile.num_chunks);
    // SAFETY: as the caller promises; the panel that is multiplied is expanded.
    expand::in_scratch(
        tile,
        expanded_bytes,
        |out| expand(format, isa, panel, out),
        |tile| unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx if tile.rows >= super::amx::MIN_ROWS => super::amx::multiply::<Expanded<SCALES, false>>(tile),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => super::avx512::multiply::<Expanded<SCALES, false>>(tile),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => super::avx2::multiply_vnni::<Expanded<SCALES, false>>(tile),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => super::avx2::multiply::<Expanded<SCALES, false>>(tile),
                _ => super::portable::multiply::<Expanded<SCALES, false>>(tile),
            }
        },
    );
}

/// Expand a panel to the form of `Expanded`.
fn expand(format: GgmlType, isa: Isa, panel: &[u8], out: &mut [u8]) {
    match isa {
        Isa::Portable => panel::expand(format, panel, out),
        // SAFETY: all other levels of x86 include AVX2.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { avx2::expand(format, panel, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("x86 alone has other levels"),
    }
}

const _: () = assert!(PANEL == 32 && GROUP * SUPER_GROUPS == 256);
