//! Panels of the formats with a grid, IQ1 to IQ3: the file's own blocks, since any form without the grid takes a third
//! more memory. Each product first expands the panel to bytes and float32, see `expand`.
//!
//! A panel has the first block of each of its columns, then the second of each, and so on.

use super::grids::{EVEN_SIGNS, IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, SIGNS};
use super::tile::{Expanded, Weights};
use crate::dtype::{from_float16, write};
use crate::linear::format::{GROUP, GgmlType, SUPER_GROUPS};
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::linear::{Content, Linear};

/// 128 in each byte.
const OFFSETS: u64 = 0x8080_8080_8080_8080;

/// A group of a block: integers with 128 added, 8 in each number, the first in the lowest byte; and the scales of both
/// halves, which are equal if the format has one.
struct Group {
    integers: [u64; GROUP / 8],
    scales: [f32; 2],
}

/// Copy rows of the matrix to a zeroed panel. Gives the first whose scales are not finite.
pub(super) fn pack_panel(format: GgmlType, rows: &[Option<Content>], panel: &mut [u8]) -> Option<usize> {
    let block_bytes = format.block_bytes();
    let mut odd = None;
    for (column, row) in rows.iter().enumerate() {
        let Some(row) = row else { continue };
        let blocks = row.bytes.chunks_exact(block_bytes);
        for (block, columns) in blocks.zip(panel.chunks_exact_mut(PANEL * block_bytes)) {
            columns[column * block_bytes..][..block_bytes].copy_from_slice(block);
            if !scale(format, block).is_finite() {
                odd = odd.or(Some(column)); // columns come in order
            }
        }
    }
    odd
}

/// Convert one column of a panel, which is a row of the matrix, to elements.
pub(super) fn unpack_column(linear: &Linear, format: GgmlType, panel: &[u8], column: usize, out: &mut [u8]) {
    let block_bytes = format.block_bytes();
    let (element_bytes, mut numbers) = (linear.dtype.bytes(), [0.0; GROUP]);
    let mut outs = out.chunks_exact_mut(GROUP * element_bytes);
    for columns in panel.chunks_exact(PANEL * block_bytes) {
        let block = &columns[column * block_bytes..][..block_bytes];
        for (number, out) in outs.by_ref().take(SUPER_GROUPS).enumerate() {
            group_numbers(format, block, number, &mut numbers);
            for (number, out) in numbers.iter().zip(out.chunks_exact_mut(element_bytes)) {
                write(linear.dtype, *number, out);
            }
        }
    }
}

/// The numbers of a group.
pub(super) fn group_numbers(format: GgmlType, block: &[u8], number: usize, out: &mut [f32; GROUP]) {
    let Group { integers, scales } = group(format, scale(format, block), block, number);
    for (eight, (out, integers)) in out.as_chunks_mut::<8>().0.iter_mut().zip(integers).enumerate() {
        for (out, integer) in out.iter_mut().zip(integers.to_le_bytes()) {
            *out = scales[eight / 2] * (f32::from(integer) - 128.0);
        }
    }
}

/// Expand a panel to the form of `Expanded`, with 128 added to integers.
pub(super) fn expand(format: GgmlType, panel: &[u8], out: &mut [u8]) {
    macro_rules! of_each {
        ($($name:ident)*) => {
            match format {
                $(GgmlType::$name => expand_of::<{ GgmlType::$name.encoding().scales_per_group }>(
                    GgmlType::$name, panel, out
                ),)*
                _ => unreachable!("a format without a grid"),
            }
        };
    }
    of_each!(Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Iq1S Iq1M)
}

#[inline(always)] // so that it is compiled anew for each format
#[expect(clippy::inline_always, reason = "see above")]
fn expand_of<const SCALES: usize>(format: GgmlType, panel: &[u8], out: &mut [u8]) {
    let (block_bytes, group_bytes) = (format.block_bytes(), Expanded::<SCALES, false>::GROUP_BYTES);
    let blocks = panel.chunks_exact(PANEL * block_bytes);
    for (blocks, out) in blocks.zip(out.chunks_exact_mut(SUPER_GROUPS * group_bytes)) {
        for (column, block) in blocks.chunks_exact(block_bytes).enumerate() {
            let scale = scale(format, block);
            for (number, out) in out.chunks_exact_mut(group_bytes).enumerate() {
                let Group { integers, scales } = group(format, scale, block, number);
                let (steps, factors) = out.split_at_mut(Expanded::<SCALES, false>::INTEGER_BYTES);
                for (steps, integers) in steps.chunks_exact_mut(2 * STEP_BYTES).zip(integers) {
                    let (first, second) = steps.split_at_mut(STEP_BYTES);
                    let cells = integers.to_le_bytes();
                    first[column * STEP_FEATURES..][..STEP_FEATURES].copy_from_slice(&cells[..STEP_FEATURES]);
                    second[column * STEP_FEATURES..][..STEP_FEATURES].copy_from_slice(&cells[STEP_FEATURES..]);
                }
                for (factors, scale) in factors.chunks_exact_mut(PANEL * 4).zip(&scales[..SCALES]) {
                    factors[column * 4..][..4].copy_from_slice(&scale.to_ne_bytes());
                }
            }
        }
    }
}

/// The scale of a block, by which its groups' scales are multiplied.
#[inline]
fn scale(format: GgmlType, block: &[u8]) -> f32 {
    let scale = if format == GgmlType::Iq1M {
        // 4 bits above each of the four words of scales.
        (0..4).fold(0, |half, word| half | word_at(block, 48 + 2 * word) >> 12 << (4 * word))
    } else {
        word_at(block, 0)
    };
    from_float16(scale)
        * match format {
            GgmlType::Iq3S => 1.0,
            GgmlType::Iq3Xxs => 0.25,
            _ => 0.125,
        }
}

/// A group of a block by number, as ggml's `dequantize_row_iq*`; `scale` is the block's.
#[inline(always)] // so that it is compiled anew for each format
#[expect(clippy::inline_always, reason = "see above")]
fn group(format: GgmlType, scale: f32, block: &[u8], number: usize) -> Group {
    let odd = |bits: u16| scale * f32::from(2 * bits + 1);
    let one = |bits: u16| [odd(bits); 2];
    // A byte has the scales of both halves, or those of two groups.
    let two = |byte: u8| [byte & 0xf, byte >> 4].map(|bits| odd(u16::from(bits)));
    match format {
        GgmlType::Iq2Xxs => {
            let (indices, bits) = (&block[2 + 8 * number..][..4], long_at(block, 6 + 8 * number));
            let integers = eights(|at| signed(IQ2_XXS[usize::from(indices[at])], EVEN_SIGNS[seven_bits(bits, at)]));
            Group { integers, scales: one((bits >> 28) as u16) }
        }
        GgmlType::Iq2Xs => {
            let words = &block[2 + 8 * number..][..8];
            let integers = eights(|at| {
                let word = usize::from(word_at(words, 2 * at));
                signed(IQ2_XS[word & 511], EVEN_SIGNS[word >> 9])
            });
            Group { integers, scales: two(block[66 + number]) }
        }
        GgmlType::Iq2S => {
            let (indices, signs) = (&block[2 + 4 * number..][..4], &block[34 + 4 * number..][..4]);
            let high = usize::from(block[66 + number]);
            let integers = eights(|at| {
                let index = usize::from(indices[at]) | (high << (8 - 2 * at) & 0x300);
                signed(IQ2_S[index], SIGNS[usize::from(signs[at])])
            });
            Group { integers, scales: two(block[74 + number]) }
        }
        GgmlType::Iq3Xxs => {
            let (indices, bits) = (&block[2 + 8 * number..][..8], long_at(block, 66 + 4 * number));
            let four = |at: usize| IQ3_XXS[usize::from(indices[at])];
            let integers =
                eights(|at| signed(joined(four(2 * at), four(2 * at + 1)), EVEN_SIGNS[seven_bits(bits, at)]));
            Group { integers, scales: one((bits >> 28) as u16) }
        }
        GgmlType::Iq3S => {
            let (indices, signs) = (&block[2 + 8 * number..][..8], &block[74 + 4 * number..][..4]);
            let high = usize::from(block[66 + number]);
            let four = |at: usize| IQ3_S[usize::from(indices[at]) | (high << (8 - at) & 0x100)];
            let integers = eights(|at| signed(joined(four(2 * at), four(2 * at + 1)), SIGNS[usize::from(signs[at])]));
            Group { integers, scales: one(u16::from(block[106 + number / 2] >> (number % 2 * 4) & 0xf)) }
        }
        GgmlType::Iq1S => {
            let (indices, bits) = (&block[2 + 4 * number..][..4], word_at(block, 34 + 2 * number));
            let integers = eights(|at| {
                shifted(IQ1[usize::from(indices[at]) | usize::from(bits >> (3 * at) & 7) << 8], bits >> 15 == 1)
            });
            Group { integers, scales: one(bits >> 12 & 7) }
        }
        GgmlType::Iq1M => {
            let (indices, bits) = (&block[4 * number..][..4], word_at(block, 32 + 2 * number));
            let integers = eights(|at| {
                let bits = bits >> (4 * at);
                shifted(IQ1[usize::from(indices[at]) | usize::from(bits & 7) << 8], bits & 8 != 0)
            });
            let scales = word_at(block, 48 + number / 2 * 2) >> (number % 2 * 6);
            Group { integers, scales: [odd(scales & 7), odd(scales >> 3 & 7)] }
        }
        _ => unreachable!("a format without a grid"),
    }
}

#[inline]
fn eights(integers: impl FnMut(usize) -> u64) -> [u64; GROUP / 8] {
    std::array::from_fn(integers)
}

/// Magnitudes up to 127 with signs of `SIGNS`, and 128 added: no byte overflows into the next.
#[inline]
fn signed(magnitudes: u64, signs: u64) -> u64 {
    (magnitudes ^ signs) + (OFFSETS - signs)
}

/// Eight times numbers, with 1 added to or subtracted from each: ggml's delta is an eighth.
#[inline]
fn shifted(numbers: u64, is_less: bool) -> u64 {
    const ONES: u64 = OFFSETS >> 7;
    if is_less { numbers - ONES } else { numbers + ONES }
}

#[inline]
fn joined(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

#[inline]
fn seven_bits(bits: u32, at: usize) -> usize {
    (bits >> (7 * at) & 127) as usize
}

#[inline]
fn word_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn long_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
