//! Parsers for blocks of formats with a grid, as ggml's `dequantize_row_iq*`. Knows no panel.

use super::{Group, LOWERED, SIGNED, integers, layout};
use crate::dtype::from_float16;
use crate::linear::format::{GROUP, GgmlType};

/// The float16 of a block, by which its groups' scales are multiplied.
pub(super) fn scale(format: GgmlType, block: &[u8]) -> u16 {
    if format == GgmlType::Iq1M {
        // 4 bits above each of the four words of scales.
        (0..4).fold(0, |scale, index| scale | word(block, 48 + 2 * index) >> 12 << (4 * index))
    } else {
        word(block, 0)
    }
}

/// A block's group by number.
pub(super) fn group(format: GgmlType, block: &[u8], number: usize) -> Group {
    // A byte has the scales of both halves, or those of two groups.
    let halves = |byte: u8| [byte & 0xf, byte >> 4];
    let mut indices = [0; 8];
    let (signs, scales) = match format {
        GgmlType::Iq2Xxs | GgmlType::Iq3Xxs => {
            let count = layout(format).indices();
            let bits = if count == 4 { long(block, 6 + 8 * number) } else { long(block, 66 + 4 * number) };
            fill(&mut indices, &block[2 + 8 * number..][..count], |_| 0);
            (std::array::from_fn(|at| even((bits >> (7 * at)) as u8 & 127)), [(bits >> 28) as u8, 0])
        }
        GgmlType::Iq2Xs => {
            let words: [u16; 4] = std::array::from_fn(|at| word(block, 2 + 8 * number + 2 * at));
            indices[..4].copy_from_slice(&words.map(|word| word & 511));
            (words.map(|word| even((word >> 9) as u8)), halves(block[66 + number]))
        }
        GgmlType::Iq2S => {
            let high = u16::from(block[66 + number]);
            fill(&mut indices, &block[2 + 4 * number..][..4], |at| high >> (2 * at) & 3);
            (signs(block, 34 + 4 * number), halves(block[74 + number]))
        }
        GgmlType::Iq3S => {
            let high = u16::from(block[66 + number]);
            fill(&mut indices, &block[2 + 8 * number..][..8], |at| high >> at & 1);
            (signs(block, 74 + 4 * number), [halves(block[106 + number / 2])[number % 2], 0])
        }
        GgmlType::Iq1S => {
            let high = word(block, 34 + 2 * number);
            let lowered = (high >> 15) * (LOWERED >> 8);
            fill(&mut indices, &block[2 + 4 * number..][..4], |at| high >> (3 * at) & 7 | lowered);
            ([0; 4], [(high >> 12 & 7) as u8, 0])
        }
        GgmlType::Iq1M => {
            let high = word(block, 32 + 2 * number);
            fill(&mut indices, &block[4 * number..][..4], |at| high >> (4 * at) & 0xf);
            let scales = word(block, 48 + number / 2 * 2) >> (number % 2 * 6);
            ([0; 4], [(scales & 7) as u8, (scales >> 3 & 7) as u8])
        }
        _ => unreachable!("a format without a grid"),
    };
    Group { indices, signs, scales }
}

/// The numbers of a group.
pub(in crate::linear::ggml) fn group_numbers(format: GgmlType, block: &[u8], number: usize, out: &mut [f32; GROUP]) {
    numbers(format, scale(format, block), &group(format, block, number), out);
}

/// The numbers of a group of a block with this float16.
pub(super) fn numbers(format: GgmlType, scale: u16, group: &Group, out: &mut [f32; GROUP]) {
    let layout = layout(format);
    let scale = from_float16(scale) * layout.unit;
    for (at, (out, integers)) in out.as_chunks_mut::<8>().0.iter_mut().zip(integers(format, group)).enumerate() {
        let half = at * layout.scales * 8 / GROUP;
        let scale = scale * f32::from(2 * group.scales[half] + 1);
        for (out, integer) in out.iter_mut().zip(integers.to_le_bytes()) {
            *out = scale * (f32::from(integer) - 128.0);
        }
    }
}

/// Join the low bytes of indices with the bits above them.
fn fill(indices: &mut [u16], lows: &[u8], high: impl Fn(usize) -> u16) {
    for (at, (index, low)) in indices.iter_mut().zip(lows).enumerate() {
        *index = u16::from(*low) | high(at) << 8;
    }
}

fn signs(block: &[u8], at: usize) -> [u8; GROUP / SIGNED] {
    std::array::from_fn(|sign| block[at + sign])
}

/// Signs of 7 features with the eighth, which makes their number even: `ksigns_iq2xs` of ggml.
fn even(signs: u8) -> u8 {
    signs | (signs.count_ones() as u8 % 2) << 7
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16
}
