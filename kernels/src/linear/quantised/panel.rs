//! A panel of integers: group after group, each the integers of its 32 columns, their scales, and their minima.
//!
//! Integers lie as VNNI and AMX take them: a step is 4 features of each column. They are stored without a sign, by
//! adding the format's offset. Where they have 4 bits, a byte has those of a step in its low half, and those of the step
//! half a group later in its high half, as GGUF has them.

use super::integers::Places;
use super::tile::{INT8_CHUNK, STEP_FEATURES};
use super::{group_features, integers, rotation};
use crate::isa::Isa;
use crate::linear::Linear;
use crate::linear::format::{Element, Quantised, from_float16, round_to_bfloat16};
use crate::linear::output::PANEL;

pub(in crate::linear) fn panel_bytes(linear: &Linear, format: Quantised) -> usize {
    Layout::of(linear, format).bytes()
}

/// Pack the panel's rows of the matrix, of which there may be fewer than `PANEL`.
pub(in crate::linear) fn pack_panel(linear: &Linear, format: Quantised, rows: &[u8], panel: &mut [u8]) {
    let layout = Layout::of(linear, format);
    panel.fill(0);
    match format.block_bytes() {
        Some(bytes) => {
            for (column, row) in rows.chunks_exact(linear.row_bytes()).enumerate() {
                layout.pack_blocks(row.chunks_exact(bytes), column, panel);
            }
        }
        None => layout.pack_floats(linear, rows, panel),
    }
}

/// Make one column of a panel, which is a row of the matrix, into elements.
pub(in crate::linear) fn unpack_column(
    linear: &Linear,
    format: Quantised,
    panel: &[u8],
    column: usize,
    out: &mut [u8],
) {
    let layout = Layout::of(linear, format);
    if format.is_rotated() {
        return layout.unpack_rotated(linear, panel, column, out);
    }
    let group_bytes = layout.group_features * linear.element.bytes();
    for (group, out) in panel.chunks_exact(layout.group_bytes()).zip(out.chunks_mut(group_bytes)) {
        let (scale, min) = layout.scale_and_min(group, column);
        for (feature, out) in out.chunks_exact_mut(linear.element.bytes()).enumerate() {
            write(linear.element, scale * layout.integer(group, column, feature) as f32 + min, out);
        }
    }
}

fn write(element: Element, value: f32, out: &mut [u8]) {
    match element {
        Element::Float32 => out.copy_from_slice(&value.to_ne_bytes()),
        Element::Bfloat16 => out.copy_from_slice(&round_to_bfloat16(value).to_ne_bytes()),
    }
}

struct Layout {
    format: Quantised,
    group_features: usize,
    num_groups: usize,
}

impl Layout {
    fn of(linear: &Linear, format: Quantised) -> Self {
        let group_features = group_features(format, linear.in_features);
        Self { format, group_features, num_groups: linear.in_features.div_ceil(group_features) }
    }

    fn bytes(&self) -> usize {
        self.num_groups * self.group_bytes()
    }

    fn group_bytes(&self) -> usize {
        let (scale, min) = self.format.scale_bytes();
        self.integer_bytes() + PANEL * (scale + min)
    }

    fn integer_bytes(&self) -> usize {
        PANEL * self.group_features * self.format.bits() / 8
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

    /// Rotate the rows, which are one group each, and make them into integers.
    fn pack_floats(&self, linear: &Linear, rows: &[u8], panel: &mut [u8]) {
        let mut integers = vec![0; self.group_features];
        let mut rotated = vec![0.0_f32; linear.in_features];
        let places = Places { first: integers.as_mut_ptr(), chunk: INT8_CHUNK, stride: INT8_CHUNK };
        // As the inputs are rotated, too; a power of two, so nothing is rounded.
        let inverse = 1.0 / rotation::num_segments(linear.in_features) as f32;
        for (column, row) in rows.chunks_exact(linear.row_bytes()).enumerate() {
            let mut row_scale = 0.0_f32;
            // SAFETY: the row is one group of whole chunks, and this machine has its best; the bytes are floats.
            unsafe {
                rotation::rotate(Isa::best(), linear.element, row, &mut rotated);
                for number in &mut rotated {
                    *number *= inverse;
                }
                let bytes = std::slice::from_raw_parts(rotated.as_ptr().cast(), size_of_val(rotated.as_slice()));
                integers::quantise(Isa::best(), Element::Float32, bytes, self.group_features, places, |scale, _| {
                    row_scale = scale;
                });
            }
            panel[self.factors(column).0].copy_from_slice(&row_scale.to_ne_bytes());
            for (step, cell) in integers.as_chunks::<STEP_FEATURES>().0.iter().enumerate() {
                let start = (step * PANEL + column) * STEP_FEATURES;
                let cell = cell.map(|integer| integer.cast_unsigned() ^ 0x80);
                panel[start..start + STEP_FEATURES].copy_from_slice(&cell);
            }
        }
    }

    /// Make one column, which is one group, into elements: as many of the rotation's columns as fit here at a time.
    fn unpack_rotated(&self, linear: &Linear, panel: &[u8], column: usize, out: &mut [u8]) {
        const AT_ONCE: usize = 16;
        let element_bytes = linear.element.bytes();
        let num_segments = rotation::num_segments(linear.in_features);
        let segment_features = linear.in_features / num_segments;
        let (scale, _) = self.scale_and_min(panel, column);
        let mut numbers = [0.0; AT_ONCE * rotation::MAX_SEGMENTS];
        for start in (0..segment_features).step_by(AT_ONCE) {
            let width = AT_ONCE.min(segment_features - start);
            let numbers = &mut numbers[..num_segments * width];
            for (index, number) in numbers.iter_mut().enumerate() {
                let feature = index / width * segment_features + start + index % width;
                *number = scale * self.integer(panel, column, feature) as f32;
            }
            // What was packed was divided by what rotating twice multiplies by: this is the row again.
            rotation::transform(numbers, num_segments);
            for (segment, numbers) in numbers.chunks_exact(width).enumerate() {
                let first = (segment * segment_features + start) * element_bytes;
                let out = out[first..first + width * element_bytes].chunks_exact_mut(element_bytes);
                out.zip(numbers).for_each(|(out, &number)| write(linear.element, number, out));
            }
        }
    }

    fn scale_and_min(&self, group: &[u8], column: usize) -> (f32, f32) {
        let number = |bytes: &[u8]| match *bytes {
            [a, b] => from_float16(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]),
            _ => 0.0,
        };
        let (scale, min) = self.factors(column);
        (number(&group[scale]), number(&group[min]))
    }

    fn integer(&self, group: &[u8], column: usize, feature: usize) -> i32 {
        let cell = |step: usize| i32::from(group[(step * PANEL + column) * STEP_FEATURES + feature % STEP_FEATURES]);
        let (step, half) = (feature / STEP_FEATURES, self.group_features / STEP_FEATURES / 2);
        let stored = match self.format.bits() {
            8 => cell(step),
            _ if step < half => cell(step) & 0xf,
            _ => cell(step - half) >> 4,
        };
        stored - self.format.offset()
    }
}
