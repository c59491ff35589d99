//! A panel of integers: super-block after super-block, if the format has them, and group after group.
//!
//! A super-block begins with the float16 factors of its 32 columns' scales, then those of their minimums. A group has
//! its integers, then the columns' scales (of both halves, if it has two), then their minimums.
//!
//! Integers are in the layout of VNNI and AMX: a step is 4 features of each column, and a group has 8 steps. They are
//! unsigned, with the format's offset added. With 8 bits, the steps follow one another. With fewer, the low 4 bits of
//! each come first: a byte has those of a step in its low half and those of the step half a group later in its high
//! half, as in GGUF. The bits above 4 follow in the same order: a byte has 1 or 2 of each of 8 or 4 steps, those of
//! such a pair of steps 4 bits apart, so that a shift by 4 moves either to the place of an integer's fifth bit.

use super::blocks::{self, Group};
use crate::dtype::{from_float16, half_of_exponent, write};
use crate::linear::format::{Encoding, GROUP, GgmlType, ScaleType};
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::linear::{Content, Linear, lowest};

/// Pairs of steps in a group.
pub(super) const PAIRS: usize = GROUP / STEP_FEATURES / 2;

pub(super) fn panel_bytes(linear: &Linear, format: GgmlType) -> usize {
    format.encoding().panel_bytes(linear.in_features / GROUP)
}

/// Pack rows of the matrix as the columns of a zeroed panel. Gives the first whose scales are not finite.
///
/// All rows advance together, so that writes are close to each other.
pub(super) fn pack_panel(format: GgmlType, rows: &[Option<Content>], panel: &mut [u8]) -> Option<usize> {
    let encoding = format.encoding();
    let panel_bytes = encoding.panel_bytes(format.block_features() / GROUP);
    let mut odd = None;
    for (index, panel) in panel.chunks_exact_mut(panel_bytes).enumerate() {
        for (column, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let block = &row.bytes[index * format.block_bytes()..][..format.block_bytes()];
            if !pack_block(format, block, column, panel) {
                odd = Some(lowest(odd, column));
            }
        }
    }
    odd
}

#[inline(always)] // so that it is compiled anew for each format
#[expect(clippy::inline_always, reason = "see above")]
fn pack_block_of(format: GgmlType, block: &[u8], column: usize, panel: &mut [u8]) -> bool {
    let encoding = format.encoding();
    let (supers, groups) = panel.split_at_mut(encoding.super_bytes());
    let super_scales = blocks::super_scales(format, block);
    let mut is_finite = super_scales.into_iter().all(is_number);
    for (supers, scale) in supers.chunks_exact_mut(PANEL * 2).zip(super_scales) {
        supers[column * 2..column * 2 + 2].copy_from_slice(&scale.to_ne_bytes());
    }
    for (number, packed) in groups.chunks_exact_mut(encoding.group_bytes()).enumerate() {
        let group = blocks::group(format, block, number);
        is_finite &= match encoding.scale_type {
            ScaleType::Half => is_number(group.scales[0]) && is_number(group.mins[0]),
            ScaleType::Exponent => are_numbers(encoding, &group),
            ScaleType::SuperBlock | ScaleType::Single => true,
        };
        pack_group(encoding, &group, column, packed);
    }
    is_finite
}

/// A copy of the code for each format, without lookups at run time.
fn pack_block(format: GgmlType, block: &[u8], column: usize, panel: &mut [u8]) -> bool {
    macro_rules! of_each {
        ($($name:ident)*) => {
            match format {
                $(GgmlType::$name => pack_block_of(GgmlType::$name, block, column, panel),)*
                _ => unreachable!("a format with a grid"),
            }
        };
    }
    of_each!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl Mxfp4 Q2K Q3K Q4K Q5K Q6K Iq4Xs)
}

/// Convert one column of a panel, which is a row of the matrix, to elements.
pub(super) fn unpack_column(linear: &Linear, format: GgmlType, panel: &[u8], column: usize, out: &mut [u8]) {
    let encoding = format.encoding();
    let groups_per_block = format.block_features() / GROUP;
    let block_bytes = encoding.panel_bytes(groups_per_block);
    let mut out = out.chunks_exact_mut(linear.dtype.bytes());
    for panel in panel.chunks_exact(block_bytes) {
        let (supers, groups) = panel.split_at(encoding.super_bytes());
        for group in groups.chunks_exact(encoding.group_bytes()) {
            for (feature, out) in out.by_ref().take(GROUP).enumerate() {
                let half = feature * encoding.scales_per_group / GROUP;
                let factor = |index: usize| factor(encoding, supers, &group[encoding.integer_bytes()..], index, column);
                let scale = factor(half);
                let min = if encoding.has_min { factor(encoding.scales_per_group + half) } else { 0.0 };
                write(linear.dtype, scale * integer(encoding, group, column, feature) as f32 + min, out);
            }
        }
    }
}

fn is_number(half: u16) -> bool {
    half & 0x7c00 != 0x7c00
}

/// Whether all numbers of a group are finite: with the greatest exponents some integers give infinities.
fn are_numbers(encoding: Encoding, group: &Group) -> bool {
    let magnitude = |place: u8| encoding.codebook.map_or(0, |codebook| codebook[usize::from(place)].unsigned_abs());
    let largest = group.integers.iter().copied().map(magnitude).max().unwrap_or_default();
    (half_of_exponent(group.scales[0] as u8) * f32::from(largest)).is_finite()
}

#[inline(always)] // as above
#[expect(clippy::inline_always, reason = "see above")]
fn pack_group(encoding: Encoding, group: &Group, column: usize, packed: &mut [u8]) {
    let (integers, factors) = packed.split_at_mut(encoding.integer_bytes());
    let steps = group.integers.as_chunks::<STEP_FEATURES>().0;
    if encoding.bits == 8 {
        for (step, cell) in steps.iter().enumerate() {
            cell_mut(integers, step, column).copy_from_slice(cell);
        }
    } else {
        for pair in 0..PAIRS {
            let cell: [u8; 4] = std::array::from_fn(|at| steps[pair][at] & 0xf | steps[pair + PAIRS][at] << 4);
            cell_mut(integers, pair, column).copy_from_slice(&cell);
        }
        for pair in 0..if encoding.bits > 4 { PAIRS } else { 0 } {
            let (line, shift) = high_place(encoding, pair);
            for (at, byte) in cell_mut(integers, PAIRS + line, column).iter_mut().enumerate() {
                *byte |= (steps[pair][at] & 0x30 | steps[pair + PAIRS][at] >> 4) << shift;
            }
        }
    }
    let width = encoding.scale_bytes();
    let numbers = group.scales[..encoding.scales_per_group].iter().chain(&group.mins[..encoding.scales_per_group]);
    for (factors, number) in factors.chunks_exact_mut(PANEL * width).zip(numbers) {
        factors[column * width..(column + 1) * width].copy_from_slice(&number.to_le_bytes()[..width]);
    }
}

/// Place of the bits above 4 of a pair of steps: behind the pairs of 4 bits, its line, and its shift.
#[inline]
fn high_place(encoding: Encoding, pair: usize) -> (usize, usize) {
    let place = pair * (encoding.bits - 4);
    (place / 4, place % 4)
}

/// A column's bytes in a step.
fn cell_mut(integers: &mut [u8], step: usize, column: usize) -> &mut [u8] {
    &mut integers[step * STEP_BYTES + column * STEP_FEATURES..][..STEP_FEATURES]
}

fn integer(encoding: Encoding, group: &[u8], column: usize, feature: usize) -> i32 {
    let byte = |line: usize| group[line * STEP_BYTES + column * STEP_FEATURES + feature % STEP_FEATURES];
    let step = feature / STEP_FEATURES;
    if encoding.bits == 8 {
        return i32::from(byte(step)) - encoding.offset;
    }
    let (pair, is_high) = (step % PAIRS, step >= PAIRS);
    let low = if is_high { byte(pair) >> 4 } else { byte(pair) & 0xf };
    if let Some(codebook) = encoding.codebook {
        return i32::from(codebook[usize::from(low)]);
    }
    let high = if encoding.bits > 4 {
        let (line, shift) = high_place(encoding, pair);
        let pairs = byte(PAIRS + line) >> shift;
        if is_high { pairs << 4 & 0x30 } else { pairs & 0x30 }
    } else {
        0
    };
    let mask = (1 << encoding.bits) - 1;
    i32::from((low | high) & mask) - encoding.offset
}

/// A scale or a minimum of a column, the scales first; `factors` are those of the group.
pub(super) fn factor(encoding: Encoding, supers: &[u8], factors: &[u8], index: usize, column: usize) -> f32 {
    let half = |bytes: &[u8], at: usize| from_float16(u16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]]));
    let at = index * PANEL + column;
    match encoding.scale_type {
        ScaleType::Half => half(factors, at),
        ScaleType::Exponent => half_of_exponent(factors[at]),
        ScaleType::SuperBlock => {
            half(supers, index / encoding.scales_per_group * PANEL + column) * f32::from(factors[at].cast_signed())
        }
        ScaleType::Single => unreachable!("nothing is packed so"),
    }
}
