//! A panel of indices: super-block after super-block, group after group.
//!
//! A super-block begins with the float16 of its 32 columns. A group has the low bytes of its indices, the first of all
//! columns, then the second; bytes of signs in the same order, if the format has them; then lines of 4 bits a column,
//! of columns 0 to 15 in low halves and of the others in high ones: the bits of indices above 8, those of the first
//! index lowest, and the scales.

use super::blocks::{self, numbers};
use super::{Group, Layout, MAX_INDICES, SIGNED, integers, layout};
use crate::dtype::{from_float16, write};
use crate::linear::format::{GROUP, GgmlType, SUPER_GROUPS};
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::linear::{Content, Linear};

/// Bytes of 4 bits a column.
pub(super) const LINE: usize = PANEL / 2;
/// Bytes of a super-block's float16.
pub(super) const SUPER_BYTES: usize = PANEL * 2;

impl Layout {
    /// Bytes of low bytes of a group's indices.
    pub(super) const fn index_bytes(self) -> usize {
        PANEL * self.indices()
    }

    pub(super) const fn sign_bytes(self) -> usize {
        if self.has_signs { PANEL * GROUP / SIGNED } else { 0 }
    }

    /// Lines of the bits of indices above 8.
    pub(super) const fn high_lines(self) -> usize {
        self.indices() * self.high_bits / 4
    }

    /// Bytes of a group in a panel.
    pub(super) const fn group_bytes(self) -> usize {
        self.index_bytes() + self.sign_bytes() + LINE * (self.high_lines() + self.scales)
    }

    pub(super) const fn super_block_bytes(self) -> usize {
        SUPER_BYTES + SUPER_GROUPS * self.group_bytes()
    }
}

pub(in crate::linear::ggml) fn panel_bytes(format: GgmlType, in_features: usize) -> usize {
    in_features / format.block_features() * layout(format).super_block_bytes()
}

/// Pack rows of the matrix as the columns of a zeroed panel. Gives the first whose scales are not finite.
pub(in crate::linear::ggml) fn pack_panel(
    format: GgmlType,
    rows: &[Option<Content>],
    panel: &mut [u8],
) -> Option<usize> {
    let layout = layout(format);
    let mut odd = None;
    for (column, row) in rows.iter().enumerate() {
        let Some(row) = row else { continue };
        let blocks = row.bytes.chunks_exact(format.block_bytes());
        for (block, packed) in blocks.zip(panel.chunks_exact_mut(layout.super_block_bytes())) {
            let scale = blocks::scale(format, block);
            if !from_float16(scale).is_finite() {
                odd = odd.or(Some(column)); // columns come in order
            }
            let (supers, groups) = packed.split_at_mut(SUPER_BYTES);
            supers[2 * column..][..2].copy_from_slice(&scale.to_ne_bytes());
            for (number, packed) in groups.chunks_exact_mut(layout.group_bytes()).enumerate() {
                pack_group(layout, &blocks::group(format, block, number), column, packed);
            }
        }
    }
    odd
}

/// Convert one column of a panel, which is a row of the matrix, to elements.
pub(in crate::linear::ggml) fn unpack_column(
    linear: &Linear,
    format: GgmlType,
    panel: &[u8],
    column: usize,
    out: &mut [u8],
) {
    let (layout, element_bytes, mut found) = (layout(format), linear.dtype.bytes(), [0.0; GROUP]);
    let mut outs = out.chunks_exact_mut(GROUP * element_bytes);
    for packed in panel.chunks_exact(layout.super_block_bytes()) {
        let (supers, groups) = packed.split_at(SUPER_BYTES);
        for (packed, out) in groups.chunks_exact(layout.group_bytes()).zip(outs.by_ref()) {
            numbers(format, super_scale(supers, column), &packed_group(layout, packed, column), &mut found);
            for (number, out) in found.iter().zip(out.chunks_exact_mut(element_bytes)) {
                write(linear.dtype, *number, out);
            }
        }
    }
}

/// Expand a panel to the form of `Expanded`.
pub(super) fn expand(format: GgmlType, panel: &[u8], out: &mut [u8]) {
    let (layout, encoding) = (layout(format), format.encoding());
    let supers = panel.chunks_exact(layout.super_block_bytes()).flat_map(|packed| {
        let (supers, groups) = packed.split_at(SUPER_BYTES);
        groups.chunks_exact(layout.group_bytes()).map(move |group| (supers, group))
    });
    for ((supers, packed), out) in supers.zip(out.chunks_exact_mut(encoding.group_bytes())) {
        let (steps, factors) = out.split_at_mut(encoding.integer_bytes());
        for column in 0..PANEL {
            let group = packed_group(layout, packed, column);
            let cells = integers(format, &group).map(u64::to_le_bytes);
            for (step, cell) in steps.chunks_exact_mut(STEP_BYTES).zip(cells.as_flattened().chunks(STEP_FEATURES)) {
                step[column * STEP_FEATURES..][..STEP_FEATURES].copy_from_slice(cell);
            }
            let scale = from_float16(super_scale(supers, column)) * layout.unit;
            for (factors, bits) in factors.chunks_exact_mut(PANEL * 4).zip(group.scales) {
                factors[column * 4..][..4].copy_from_slice(&(scale * f32::from(2 * bits + 1)).to_ne_bytes());
            }
        }
    }
}

fn pack_group(layout: Layout, group: &Group, column: usize, packed: &mut [u8]) {
    let (indices, rest) = packed.split_at_mut(layout.index_bytes());
    let (signs, lines) = rest.split_at_mut(layout.sign_bytes());
    let mut set = |line: usize, bits: u8| lines[line * LINE + column % LINE] |= bits << (column / LINE * 4);
    for (at, index) in group.indices[..layout.indices()].iter().enumerate() {
        indices[at * PANEL + column] = *index as u8;
        if layout.high_bits > 0 {
            let place = at * layout.high_bits;
            set(place / 4, ((index >> 8) << (place % 4)) as u8);
        }
    }
    for (line, sign) in signs.chunks_exact_mut(PANEL).zip(group.signs) {
        line[column] = sign;
    }
    for (at, scale) in group.scales[..layout.scales].iter().enumerate() {
        set(layout.high_lines() + at, *scale);
    }
}

fn packed_group(layout: Layout, packed: &[u8], column: usize) -> Group {
    let (low, rest) = packed.split_at(layout.index_bytes());
    let (sign_bytes, lines) = rest.split_at(layout.sign_bytes());
    let line = |line: usize| lines[line * LINE + column % LINE] >> (column / LINE * 4) & 0xf;
    let mut group = Group { indices: [0; MAX_INDICES], signs: [0; GROUP / SIGNED], scales: [0; 2] };
    for (at, index) in group.indices[..layout.indices()].iter_mut().enumerate() {
        *index = u16::from(low[at * PANEL + column]);
        if layout.high_bits > 0 {
            let (place, mask) = (at * layout.high_bits, (1 << layout.high_bits) - 1);
            *index |= u16::from(line(place / 4) >> (place % 4) & mask) << 8;
        }
    }
    for (sign, bytes) in group.signs.iter_mut().zip(sign_bytes.chunks_exact(PANEL)) {
        *sign = bytes[column];
    }
    for (at, scale) in group.scales[..layout.scales].iter_mut().enumerate() {
        *scale = line(layout.high_lines() + at);
    }
    group
}

fn super_scale(supers: &[u8], column: usize) -> u16 {
    u16::from_ne_bytes([supers[2 * column], supers[2 * column + 1]])
}
