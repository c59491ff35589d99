//! Parsers for blocks of GGUF's formats, as ggml's `dequantize_row_*`. Knows no panel.

use crate::dtype::{from_float16, half_of_exponent};
use crate::linear::format::{GROUP, GgmlType, SUPER_GROUPS, ScaleType};

/// A group of a block: unsigned integers, or indices into the codebook; scales and minimums as stored in a panel,
/// float16 or bytes, for each half if the format has two.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) integers: [u8; GROUP],
    pub(super) scales: [u16; 2],
    pub(super) mins: [u16; 2],
}

/// The float16 factors of a super-block's scales and minimums; zeros for other blocks.
pub(super) fn super_scales(format: GgmlType, block: &[u8]) -> [u16; 2] {
    const NEGATIVE: u16 = 0x8000; // these formats subtract their minimums
    match format {
        GgmlType::Q2K => [half(block, 80), half(block, 82) ^ NEGATIVE],
        GgmlType::Q3K => [half(block, 108), 0],
        GgmlType::Q4K | GgmlType::Q5K => [half(block, 0), half(block, 2) ^ NEGATIVE],
        GgmlType::Q6K => [half(block, 208), 0],
        GgmlType::Iq4Xs => [half(block, 0), 0],
        _ => [0; 2],
    }
}

/// A block's group by number; an only group is number 0.
#[inline(always)] // so that it is compiled anew for each format
#[expect(clippy::inline_always, reason = "see above")]
pub(super) fn group(format: GgmlType, block: &[u8], number: usize) -> Group {
    debug_assert!(number < format.block_features() / GROUP);
    let (part, within) = (number / 4, number % 4); // for three formats, which have two parts of 128 features
    let (mut scales, mut mins) = ([0; 2], [0; 2]);
    let integers = match format {
        GgmlType::Q8_0 => {
            scales[0] = half(block, 0);
            integers(|feature| block[2 + feature] ^ 0x80)
        }
        GgmlType::Q4_0 | GgmlType::Iq4Nl => {
            scales[0] = half(block, 0);
            nibbles(&block[2..])
        }
        GgmlType::Mxfp4 => {
            scales[0] = u16::from(block[0]);
            nibbles(&block[1..])
        }
        GgmlType::Q4_1 => {
            (scales[0], mins[0]) = (half(block, 0), half(block, 2));
            nibbles(&block[4..])
        }
        GgmlType::Q5_0 => {
            scales[0] = half(block, 0);
            with_bits(nibbles(&block[6..]), &block[2..6])
        }
        GgmlType::Q5_1 => {
            (scales[0], mins[0]) = (half(block, 0), half(block, 2));
            with_bits(nibbles(&block[8..]), &block[4..8])
        }
        GgmlType::Q2K => {
            let pairs = &block[2 * number..2 * number + 2];
            scales = [pairs[0], pairs[1]].map(|pair| u16::from(pair & 0xf));
            mins = [pairs[0], pairs[1]].map(|pair| u16::from(pair >> 4));
            let bytes = &block[16 + 32 * part..][..GROUP];
            integers(|feature| bytes[feature] >> (2 * within) & 3)
        }
        GgmlType::Q3K => {
            let packed = &block[96..108];
            scales = [2 * number, 2 * number + 1].map(|index| {
                let low = if index < 8 { packed[index] & 0xf } else { packed[index - 8] >> 4 };
                let high = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
                byte(low | high << 4, -32)
            });
            let (masks, bytes) = (&block[..GROUP], &block[32 + 32 * part..][..GROUP]);
            integers(|feature| bytes[feature] >> (2 * within) & 3 | (masks[feature] >> number & 1) << 2)
        }
        GgmlType::Q4K | GgmlType::Q5K => {
            (scales[0], mins[0]) = scale_and_min(&block[4..16], number);
            let (start, shift) = (if format == GgmlType::Q4K { 16 } else { 48 }, number % 2 * 4);
            let bytes = &block[start + number / 2 * GROUP..][..GROUP];
            let low = |feature: usize| bytes[feature] >> shift & 0xf;
            if format == GgmlType::Q4K {
                integers(low)
            } else {
                let bits = &block[16..48];
                integers(|feature| low(feature) | (bits[feature] >> number & 1) << 4)
            }
        }
        GgmlType::Q6K => {
            scales = [2 * number, 2 * number + 1].map(|index| u16::from(block[192 + index]));
            let (lows, highs) = (&block[64 * part + within % 2 * 32..][..GROUP], &block[128 + 32 * part..][..GROUP]);
            let shift = within / 2 * 4;
            integers(|feature| lows[feature] >> shift & 0xf | (highs[feature] >> (2 * within) & 3) << 4)
        }
        GgmlType::Iq4Xs => {
            let low = block[4 + number / 2] >> (number % 2 * 4) & 0xf;
            let high = (half(block, 2) >> (2 * number) & 3) as u8;
            scales[0] = byte(low | high << 4, -32);
            nibbles(&block[8 + 16 * number..])
        }
        _ => unreachable!("a format with a grid"),
    };
    Group { integers, scales, mins }
}

#[inline]
fn integers(integer: impl FnMut(usize) -> u8) -> [u8; GROUP] {
    std::array::from_fn(integer)
}

/// The low halves of 16 bytes, then the high ones.
#[inline]
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    let bytes = &bytes[..GROUP / 2];
    integers(|feature| if feature < GROUP / 2 { bytes[feature] & 0xf } else { bytes[feature - GROUP / 2] >> 4 })
}

/// Add a fifth bit to each of the integers.
#[inline]
fn with_bits(nibbles: [u8; GROUP], bits: &[u8]) -> [u8; GROUP] {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    integers(|feature| nibbles[feature] | ((bits >> feature & 1) << 4) as u8)
}

/// The scale and minimum in `Q4_K` and `Q5_K`: 6 bits each, `get_scale_min_k4` of ggml.
#[inline]
fn scale_and_min(packed: &[u8], number: usize) -> (u16, u16) {
    let (scale, min) = if number < SUPER_GROUPS / 2 {
        (packed[number] & 63, packed[number + 4] & 63)
    } else {
        let low = packed[number + 4];
        (low & 0xf | packed[number - 4] >> 6 << 4, low >> 4 | packed[number] >> 6 << 4)
    };
    (u16::from(scale), u16::from(min))
}

/// A signed byte, from which `less` is subtracted.
#[inline]
fn byte(number: u8, less: i8) -> u16 {
    u16::from(number.wrapping_add_signed(less))
}

#[inline]
fn half(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The numbers of a group.
pub(super) fn group_numbers(format: GgmlType, block: &[u8], number: usize, out: &mut [f32; GROUP]) {
    let encoding = format.encoding();
    let Group { integers, scales, mins } = group(format, block, number);
    let factors = |all: u16, factors: [u16; 2]| match encoding.scale_type {
        ScaleType::SuperBlock => factors.map(|factor| from_float16(all) * f32::from((factor as u8).cast_signed())),
        ScaleType::Exponent => factors.map(|factor| half_of_exponent(factor as u8)),
        ScaleType::Half | ScaleType::Single => factors.map(from_float16),
    };
    let [all_scales, all_mins] = super_scales(format, block);
    let scales = factors(all_scales, scales);
    let mins = if encoding.has_min { factors(all_mins, mins) } else { [0.0; 2] };
    for (feature, (out, integer)) in out.iter_mut().zip(integers).enumerate() {
        let half = feature * encoding.scales_per_group / GROUP;
        let integer = match encoding.codebook {
            Some(codebook) => i32::from(codebook[usize::from(integer)]),
            None => i32::from(integer) - encoding.offset,
        };
        *out = scales[half] * integer as f32 + mins[half];
    }
}
