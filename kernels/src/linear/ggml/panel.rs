//! A panel of integers: group after group, each the integers of its 32 columns, their scales, and their minima.
//!
//! Integers lie as VNNI and AMX take them: a step is 4 features of each column. They are stored without a sign, by
//! adding the format's offset. Where they have 4 bits, a byte has those of a step in its low half, and those of the
//! step half a group later in its high half, as GGUF has them.

use crate::dtype::{from_float16, write};
use crate::linear::Linear;
use crate::linear::format::{GROUP, GgmlType};
use crate::linear::output::{PANEL, STEP_FEATURES};

pub(in crate::linear) fn panel_bytes(linear: &Linear, format: GgmlType) -> usize {
    Layout::of(linear, format).bytes()
}

/// Pack the panel's rows of the matrix, of which there may be fewer than `PANEL`.
pub(in crate::linear) fn pack_panel(linear: &Linear, format: GgmlType, rows: &[u8], panel: &mut [u8]) {
    let layout = Layout::of(linear, format);
    panel.fill(0);
    for (column, row) in rows.chunks_exact(linear.row_bytes()).enumerate() {
        layout.pack_blocks(row.chunks_exact(format.block_bytes()), column, panel);
    }
}

/// Make one column of a panel, which is a row of the matrix, into elements.
pub(in crate::linear) fn unpack_column(linear: &Linear, format: GgmlType, panel: &[u8], column: usize, out: &mut [u8]) {
    let layout = Layout::of(linear, format);
    let group_bytes = GROUP * linear.dtype.bytes();
    for (group, out) in panel.chunks_exact(layout.group_bytes()).zip(out.chunks_exact_mut(group_bytes)) {
        let (scale, min) = layout.scale_and_min(group, column);
        for (feature, out) in out.chunks_exact_mut(linear.dtype.bytes()).enumerate() {
            write(linear.dtype, scale * layout.integer(group, column, feature) as f32 + min, out);
        }
    }
}

struct Layout {
    format: GgmlType,
    num_groups: usize,
}

impl Layout {
    fn of(linear: &Linear, format: GgmlType) -> Self {
        Self { format, num_groups: linear.in_features / GROUP }
    }

    fn bytes(&self) -> usize {
        self.num_groups * self.group_bytes()
    }

    fn group_bytes(&self) -> usize {
        let (scale, min) = self.format.scale_bytes();
        self.integer_bytes() + PANEL * (scale + min)
    }

    fn integer_bytes(&self) -> usize {
        PANEL * GROUP * self.format.bits() / 8
    }

    /// Where a column's scale and its minimum lie in a group, the minimum in no bytes where there is none.
    fn factors(&self, column: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (scale, min) = self.format.scale_bytes();
        let scales = self.integer_bytes() + column * scale;
        let mins = self.integer_bytes() + PANEL * scale + column * min;
        (scales..scales + scale, mins..mins + min)
    }

    fn pack_blocks<'a>(&self, blocks: impl Iterator<Item = &'a [u8]>, column: usize, panel: &mut [u8]) {
        let (scale, min) = self.factors(column);
        for (block, group) in blocks.zip(panel.chunks_exact_mut(self.group_bytes())) {
            let (block_scale, rest) = block.split_at(scale.len());
            let (block_min, integers) = rest.split_at(min.len());
            group[scale.clone()].copy_from_slice(block_scale);
            group[min.clone()].copy_from_slice(block_min);
            // Only 8 bits come with a sign: adding 128 flips it.
            let flip = if self.format.bits() == 8 { 0x80 } else { 0 };
            for (step, cell) in integers.as_chunks::<STEP_FEATURES>().0.iter().enumerate() {
                let start = (step * PANEL + column) * STEP_FEATURES;
                group[start..start + STEP_FEATURES].copy_from_slice(&cell.map(|byte| byte ^ flip));
            }
        }
    }

    fn scale_and_min(&self, group: &[u8], column: usize) -> (f32, f32) {
        let number = |bytes: &[u8]| match *bytes {
            [a, b] => from_float16(u16::from_ne_bytes([a, b])),
            _ => 0.0,
        };
        let (scale, min) = self.factors(column);
        (number(&group[scale]), number(&group[min]))
    }

    fn integer(&self, group: &[u8], column: usize, feature: usize) -> i32 {
        let cell = |step: usize| i32::from(group[(step * PANEL + column) * STEP_FEATURES + feature % STEP_FEATURES]);
        let (step, half) = (feature / STEP_FEATURES, GROUP / STEP_FEATURES / 2);
        let stored = match self.format.bits() {
            8 => cell(step),
            _ if step < half => cell(step) & 0xf,
            _ => cell(step - half) >> 4,
        };
        stored - self.format.offset()
    }
}
