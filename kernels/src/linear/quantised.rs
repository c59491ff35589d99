//! Weights of integers in groups of 32: input rows are made into integers, too, and each group's product is an exact sum
//! of integers.
//!
//! Of an output element every operation is specified: for each group in turn, `sum = fma(input scale × weight scale,
//! integer product, sum)`, and where weights have a minimum `sum = fma(minimum, input scale × sum of input integers,
//! sum)` after it, in float32. So it is bitwise the same in every micro-kernel, on every instruction set.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod integers;
mod panel;
mod portable;
mod tile;

use super::format::{Element, GROUP, Quantised};
use super::output::{Output, SIDE};
use super::{IntegerRows, Linear, Part};
use crate::isa::Isa;
use crate::scratch::Scratch;
use integers::Places;
pub(super) use panel::{pack_panel, panel_bytes, unpack_column};
use tile::{Factors, Q4_0, Q4_1, Q8_0, Tile};

/// Input rows as integers, each group with what its product is to be scaled with.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    format: Quantised,
    element: Element,
    in_features: usize,
    /// [rows, `in_features`]
    x: *const u8,
    num_groups: usize,
    /// As `Tile` has them.
    integers: *mut i8,
    factors: *mut Factors,
}

// SAFETY: the pointers are followed in unsafe methods alone, whose callers answer for them.
unsafe impl Send for Rows {}
// SAFETY: as above; tasks write to rows that no other task has.
unsafe impl Sync for Rows {}

impl Rows {
    /// Room for what x is made into, which lasts until the scratch memory is used for something else.
    pub(super) fn within(
        linear: &Linear,
        format: Quantised,
        x: *const u8,
        num_rows: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let num_groups = linear.in_features / GROUP;
        // A tile of AMX is read whole, with its factors, even where it has fewer rows.
        let whole_rows = num_rows.next_multiple_of(SIDE);
        let integer_bytes = whole_rows * num_groups * GROUP;
        let factor_bytes = whole_rows * num_groups * size_of::<Factors>();
        let (integers, factors) = scratch.bytes(integer_bytes + factor_bytes).split_at_mut(integer_bytes);
        let rows = Self {
            format,
            element: linear.element,
            in_features: linear.in_features,
            x,
            num_groups,
            integers: integers.as_mut_ptr().cast(),
            factors: factors.as_mut_ptr().cast(),
        };
        // SAFETY: this is their room.
        unsafe { rows.fill_last_side(num_rows) };
        rows
    }

    /// Make zeros of the factors past the last row: a tile of AMX is computed whole, and what anyone left there may be
    /// numbers that are slow to compute with.
    ///
    /// # Safety
    ///
    /// The rows' room is still theirs.
    unsafe fn fill_last_side(&self, num_rows: usize) {
        for row in num_rows..num_rows.next_multiple_of(SIDE) {
            for group in 0..self.num_groups {
                // SAFETY: as the caller promises: there is room for whole tiles.
                unsafe { self.factors_of(row).add(group * SIDE).write(Factors::default()) };
            }
        }
    }

    /// # Safety
    ///
    /// There is room for the row.
    unsafe fn factors_of(&self, row: usize) -> *mut Factors {
        // SAFETY: as the caller promises.
        unsafe { self.factors.add(row / SIDE * SIDE * self.num_groups + row % SIDE) }
    }
}

impl IntegerRows for Rows {
    fn at_once(&self, bytes: usize) -> usize {
        (bytes / (self.num_groups * GROUP)).max(1)
    }

    unsafe fn quantise_row(&self, row: usize, isa: Isa) {
        let x_bytes = self.in_features * self.element.bytes();
        // SAFETY: as the caller promises.
        let x = unsafe { std::slice::from_raw_parts(self.x.add(row * x_bytes), x_bytes) };
        let (side, within) = (row / SIDE * SIDE, row % SIDE);
        // SAFETY: as the caller promises: a row has factors for each of its groups.
        unsafe {
            let first = self.integers.add(side * self.num_groups * GROUP + within * GROUP);
            let mut factors = self.factors_of(row);
            let places = Places { first, stride: SIDE * GROUP };
            integers::quantise(isa, self.element, x, places, |scale, sum| {
                factors.write(Factors::new(scale, sum, self.format.offset()));
                factors = factors.wrapping_add(SIDE);
            });
        }
    }

    unsafe fn multiply(&self, isa: Isa, part: &Part, output: Output) {
        let first = part.rows.start;
        debug_assert!(first.is_multiple_of(SIDE));
        // SAFETY: as the caller promises.
        unsafe {
            let tile = Tile {
                rows: part.rows.len(),
                integers: self.integers.add(first * self.num_groups * GROUP),
                factors: self.factors.add(first * self.num_groups),
                num_groups: self.num_groups,
                weights: part.panel,
                output: output.rows_from(first),
            };
            match self.format {
                Quantised::Q8_0 => tile.multiply::<Q8_0>(isa),
                Quantised::Q4_0 => tile.multiply::<Q4_0>(isa),
                Quantised::Q4_1 => tile.multiply::<Q4_1>(isa),
            }
        }
    }
}
