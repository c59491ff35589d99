//! A panel of 8-bit integers: those of its 32 columns in the layout of VNNI and AMX, then the columns' scales.
//!
//! A step is 4 features of each column. Integers are unsigned, with 128 added. A column's scale is its largest
//! magnitude / 127, or the one stored with its integers.
//!
//! Those of GGUF's 4 bits are computed as `(D × q + M) / 256`, rounded down, in wrapping arithmetic of 16 bits. D and M
//! are the group's scale and minimum divided by the column's scale, times 256; M includes 128 × 256 for the offset and
//! 128 to round to nearest. Each group has its 4-bit integers, in the layout of `ggml/panel.rs`, the D of all columns,
//! and the M.

use super::nibbles::{self, GROUP_BYTES, INTEGER_BYTES, byte};
use super::tile::CHUNK;
use crate::dtype::{from_float16, write};
use crate::linear::Linear;
use crate::linear::format::{GROUP, GgmlType, Int8Source};
use crate::linear::output::{PANEL, STEP_FEATURES};
use crate::linear::rounding::{Scale, nearest};

const LARGEST: f32 = 127.0;

pub(in crate::linear) fn panel_bytes(linear: &Linear, source: Int8Source) -> usize {
    integer_bytes(linear.in_features, source) + PANEL * size_of::<f32>()
}

/// Bytes of a panel up to the scales.
pub(super) fn integer_bytes(in_features: usize, source: Int8Source) -> usize {
    match source {
        Int8Source::Elements => in_features.next_multiple_of(CHUNK) * PANEL,
        Int8Source::Q4_0 | Int8Source::Q4_1 => nibbles::panel_bytes(in_features.div_ceil(CHUNK)),
    }
}

/// Pack numbers as a column of a zeroed panel. Gives whether they are finite.
pub(in crate::linear) fn pack_numbers(numbers: &[f32], column: usize, panel: &mut [u8]) -> bool {
    let (integers, scales) = panel.split_at_mut(integer_bytes(numbers.len(), Int8Source::Elements));
    let Scale { scale, inverse } = Scale::of(numbers.iter().copied(), LARGEST);
    for (feature, number) in numbers.iter().enumerate() {
        integers[cell(column, feature)] = nearest(number * inverse) as u8 ^ 0x80;
    }
    scales[column * 4..column * 4 + 4].copy_from_slice(&scale.to_ne_bytes());
    scale.is_finite()
}

/// Pack integers with their scale, unchanged, as a column of a zeroed panel. Gives whether the scale is finite.
pub(in crate::linear) fn pack_integers(row: &[u8], scale: f32, column: usize, panel: &mut [u8]) -> bool {
    let (integers, scales) = panel.split_at_mut(integer_bytes(row.len(), Int8Source::Elements));
    for (feature, integer) in row.iter().enumerate() {
        integers[cell(column, feature)] = integer ^ 0x80;
    }
    scales[column * 4..column * 4 + 4].copy_from_slice(&scale.to_ne_bytes());
    scale.is_finite()
}

/// Pack blocks of 4 bits as a column of a zeroed panel. Gives whether their scales are finite.
pub(in crate::linear) fn pack_blocks(
    linear: &Linear,
    source: Int8Source,
    row: &[u8],
    column: usize,
    panel: &mut [u8],
) -> bool {
    let format = source.blocks().expect("int8 of blocks");
    let (integers, scales) = panel.split_at_mut(integer_bytes(linear.in_features, source));
    let scale = pack_groups(format, row, column, integers);
    scales[column * 4..column * 4 + 4].copy_from_slice(&scale.to_ne_bytes());
    scale.is_finite()
}

/// Convert one column of a panel, which is a row of the matrix, to elements.
pub(in crate::linear) fn unpack_column(
    linear: &Linear,
    source: Int8Source,
    panel: &[u8],
    column: usize,
    out: &mut [u8],
) {
    let (integers, scales) = panel.split_at(integer_bytes(linear.in_features, source));
    let scale = f32::from_ne_bytes(scales.as_chunks().0[column]);
    for (feature, out) in out.chunks_exact_mut(linear.dtype.bytes()).enumerate() {
        let stored = match source {
            Int8Source::Elements => integers[cell(column, feature)],
            Int8Source::Q4_0 | Int8Source::Q4_1 => nibble_as_byte(integers, column, feature),
        };
        write(linear.dtype, scale * (f32::from(stored) - 128.0), out);
    }
}

/// Offset of a column's feature from the start of its panel, or of its group.
fn cell(column: usize, feature: usize) -> usize {
    (feature / STEP_FEATURES * PANEL + column) * STEP_FEATURES + feature % STEP_FEATURES
}

fn nibble_as_byte(panel: &[u8], column: usize, feature: usize) -> u8 {
    let group = &panel[feature / GROUP * GROUP_BYTES..][..GROUP_BYTES];
    let (integers, factors) = group.split_at(INTEGER_BYTES);
    let factor = |index: usize| i16::from_ne_bytes(factors.as_chunks().0[index]);
    let pair = integers[cell(column, feature % (GROUP / 2))];
    let nibble = if feature % GROUP < GROUP / 2 { pair & 0xf } else { pair >> 4 };
    byte(nibble, factor(column), factor(PANEL + column))
}

/// Write a column of 4-bit integers with each group's D and M, and give its scale.
fn pack_groups(format: GgmlType, row: &[u8], column: usize, panel: &mut [u8]) -> f32 {
    let blocks = row.chunks_exact(format.block_bytes());
    let min_bytes = if format.encoding().has_min { 2 } else { 0 };
    let half = |bytes: &[u8]| from_float16(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let group = |block: &[u8]| {
        let scale = half(block);
        (scale, if min_bytes > 0 { half(&block[2..]) } else { -8.0 * scale })
    };
    let ends = blocks.clone().map(group).flat_map(|(scale, min)| [min, 15.0_f32.mul_add(scale, min)]);
    let Scale { scale: column_scale, .. } = Scale::of(ends, LARGEST);
    for (block, packed) in blocks.zip(panel.chunks_exact_mut(GROUP_BYTES)) {
        let (integers, factors) = packed.split_at_mut(INTEGER_BYTES);
        for (feature, &pair) in block[2 + min_bytes..].iter().enumerate() {
            integers[cell(column, feature)] = pair;
        }
        let (scale, min) = group(block);
        let steps = |number: f32| if column_scale > 0.0 { nearest(256.0 * number / column_scale) } else { 0 };
        let (scale, start) = (steps(scale), steps(min) + 128);
        let largest = start.abs().max((15 * scale + start).abs());
        assert!(largest <= 32_760, "integers of 8 bits reach {largest} / 256");
        for (index, factor) in [scale as i16, (start as i16).wrapping_add(i16::MIN)].into_iter().enumerate() {
            let at = (index * PANEL + column) * size_of::<i16>();
            factors[at..at + size_of::<i16>()].copy_from_slice(&factor.to_ne_bytes());
        }
    }
    column_scale
}
