//! Weights of 8 bits with one scale an output; inputs of 15 bits with one scale a row, in two planes of 8 bits.
//!
//! An input is `scale × (128 × high + low)`, a weight `scale × integer`. The sums of products of the high and of the low
//! integers are exact; an output element is `(input scale × weight scale) × fma(128, high sum, low sum)`, in float32,
//! each sum rounded to it first. So it is bitwise the same in every micro-kernel, on every instruction set, and whether
//! weights lie in 8 bits or in GGUF's 4, of which the same integers are made: see `panel`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod nibbles;
mod panel;
mod planes;
mod portable;
mod tile;

use super::format::{Element, Source};
use super::output::{Output, SIDE};
use super::{IntegerRows, Linear, Part};
use crate::isa::Isa;
use crate::scratch::Scratch;
pub(super) use panel::{pack_panel, panel_bytes, unpack_column};
use tile::{Bytes, CHUNK, Factors, Nibbles, PLANES, Tile};

/// Input rows as integers, each with what its products are to be scaled with.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    source: Source,
    element: Element,
    in_features: usize,
    /// [rows, `in_features`]
    x: *const u8,
    num_chunks: usize,
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
        source: Source,
        x: *const u8,
        num_rows: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let num_chunks = linear.in_features.div_ceil(CHUNK);
        // A tile of AMX is read whole, even where it has fewer rows.
        let integer_bytes = num_rows.next_multiple_of(SIDE) * num_chunks * PLANES * CHUNK;
        let memory = scratch.bytes(integer_bytes + num_rows * size_of::<Factors>());
        let (integers, factors) = memory.split_at_mut(integer_bytes);
        Self {
            source,
            element: linear.element,
            in_features: linear.in_features,
            x,
            num_chunks,
            integers: integers.as_mut_ptr().cast(),
            factors: factors.as_mut_ptr().cast(),
        }
    }

    /// # Safety
    ///
    /// There is room for the row, the first of a side.
    unsafe fn integers_of(&self, row: usize) -> *mut i8 {
        // SAFETY: as the caller promises.
        unsafe { self.integers.add(row * self.num_chunks * PLANES * CHUNK) }
    }
}

impl IntegerRows for Rows {
    fn at_once(&self, bytes: usize) -> usize {
        (bytes / (self.num_chunks * PLANES * CHUNK)).max(1)
    }

    unsafe fn quantise_row(&self, row: usize, isa: Isa) {
        let x_bytes = self.in_features * self.element.bytes();
        // SAFETY: as the caller promises.
        unsafe {
            let x = std::slice::from_raw_parts(self.x.add(row * x_bytes), x_bytes);
            let first = self.integers_of(row / SIDE * SIDE).add(row % SIDE * CHUNK);
            self.factors.add(row).write(planes::quantise(isa, self.element, x, first));
        }
    }

    unsafe fn multiply(&self, isa: Isa, part: &Part, output: Output) {
        let first = part.rows.start;
        debug_assert!(first.is_multiple_of(SIDE));
        // SAFETY: as the caller promises.
        unsafe {
            let tile = Tile {
                rows: part.rows.len(),
                integers: self.integers_of(first),
                factors: self.factors.add(first),
                num_chunks: self.num_chunks,
                weights: part.panel,
                scales: part.panel.add(panel::integer_bytes(self.in_features, self.source)),
                output: output.rows_from(first),
            };
            match self.source {
                Source::Elements => tile.multiply::<Bytes>(isa),
                Source::Q4_0 | Source::Q4_1 => tile.multiply::<Nibbles>(isa),
            }
        }
    }
}
