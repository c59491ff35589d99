//! `x @ weight.T` in float32 or bfloat16, of weights that were packed once. Knows no tensor and no lock.
//!
//! An output element is one sum over the input features, in their order, from one accumulator, in float32: the number
//! of rows beside it and of threads change how sums are grouped in time, never the order within one.

mod portable;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use crate::isa::Isa;
use crate::threads::Pool;
pub(crate) use tile::round_to_bfloat16;
use tile::{Multiply, PANEL, Tile};

/// Bytes of one step of a panel: one number, or two halves as long, of each of its columns.
const STEP_BYTES: usize = PANEL * 4;
/// Rows that are multiplied with one panel after the other, so that they stay in the second cache.
const ROWS_AT_ONCE: usize = 192;

/// What weights, inputs and outputs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Float32,
    Bfloat16,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 => 2,
        }
    }

    /// How many input features are in one step.
    fn features_a_step(self) -> usize {
        4 / self.bytes()
    }
}

/// A matrix as it lies packed: in panels of `PANEL` outputs, each a run of steps over the inputs, zero where either
/// side ends early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) element: Element,
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
}

impl Linear {
    pub(crate) fn packed_bytes(&self) -> usize {
        self.num_panels() * self.panel_bytes()
    }

    /// Pack the matrix, [out_features, in_features].
    pub(crate) fn pack(&self, weight: &[u8], packed: &mut [u8]) {
        let row_bytes = self.in_features * self.element.bytes();
        assert_eq!((weight.len(), packed.len()), (self.out_features * row_bytes, self.packed_bytes()));
        for (rows, panel) in weight.chunks(row_bytes * PANEL).zip(packed.chunks_exact_mut(self.panel_bytes())) {
            panel.fill(0);
            for (column, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (numbers, step) in row.chunks(4).zip(panel.chunks_exact_mut(STEP_BYTES)) {
                    step[column * 4..column * 4 + numbers.len()].copy_from_slice(numbers);
                }
            }
        }
    }

    /// Copy one row of the matrix back out of its packed form.
    pub(crate) fn unpack_row(&self, packed: &[u8], row: usize, out: &mut [u8]) {
        assert_eq!((packed.len(), out.len()), (self.packed_bytes(), self.in_features * self.element.bytes()));
        let panel = &packed[row / PANEL * self.panel_bytes()..];
        for (cell, step) in out.chunks_mut(4).zip(panel.chunks_exact(STEP_BYTES)) {
            let column = row % PANEL * 4;
            cell.copy_from_slice(&step[column..column + cell.len()]);
        }
    }

    /// `out = x @ weight.T`; x [rows, in_features], out [rows, out_features].
    pub(crate) fn run(&self, isa: Isa, pool: &mut Pool, x: &[u8], packed: &[u8], out: &mut [u8]) {
        let x_stride = self.in_features * self.element.bytes();
        let out_stride = self.out_features * self.element.bytes();
        let num_rows = x.len() / x_stride;
        assert_eq!((x.len(), out.len()), (num_rows * x_stride, num_rows * out_stride));
        assert_eq!(packed.len(), self.packed_bytes());
        let tiles = tiles(self.element, isa);
        let blocks: Vec<_> = equal_parts(0..num_rows, ROWS_AT_ONCE).collect();
        let out = Shared(out.as_mut_ptr());
        pool.run(blocks.len() * self.num_panels(), &|task| {
            let (block, panel) = (task / self.num_panels(), task % self.num_panels());
            let first_column = panel * PANEL;
            for rows in equal_parts(blocks[block].clone(), tiles.len()) {
                let tile = Tile {
                    x: x[rows.start * x_stride..].as_ptr(),
                    x_stride,
                    weights: packed[panel * self.panel_bytes()..].as_ptr(),
                    in_features: self.in_features,
                    // SAFETY: the row and the column are within `out`, which has `num_rows` rows of `out_stride`.
                    out: unsafe { out.at(rows.start * out_stride + first_column * self.element.bytes()) },
                    out_stride,
                    columns: PANEL.min(self.out_features - first_column),
                };
                // SAFETY: the lengths were checked above: x has `rows` rows of `in_features`, the panel's steps are all
                // there, and no other task writes these rows' columns. The instructions were chosen by `isa`.
                unsafe { tiles[rows.len() - 1](&tile) };
            }
        });
    }

    fn num_panels(&self) -> usize {
        self.out_features.div_ceil(PANEL)
    }

    fn panel_bytes(&self) -> usize {
        self.in_features.div_ceil(self.element.features_a_step()) * STEP_BYTES
    }
}

/// A pointer that threads write through, each to elements of its own.
struct Shared(*mut u8);

// SAFETY: `Linear::run` gives every task rows and columns that no other task has.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    ///
    /// `offset` is within what the pointer was made of.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(offset) }
    }
}

/// The fewest parts of at most `largest`, as equal as can be.
fn equal_parts(range: Range<usize>, largest: usize) -> impl Iterator<Item = Range<usize>> {
    let (length, parts) = (range.len(), range.len().div_ceil(largest));
    let end = move |part: usize| range.start + length * part / parts;
    (0..parts).map(move |part| end(part)..end(part + 1))
}

/// The kernels for 1, 2, 3 and so many rows.
fn tiles(element: Element, isa: Isa) -> &'static [Multiply] {
    match (element, isa) {
        #[cfg(target_arch = "x86_64")]
        (Element::Float32, Isa::Avx512 | Isa::Avx512Bf16) => &x86::FLOAT32_AVX512,
        #[cfg(target_arch = "x86_64")]
        (Element::Float32, Isa::Avx2) => &x86::FLOAT32_AVX2,
        #[cfg(target_arch = "x86_64")]
        (Element::Bfloat16, Isa::Avx512Bf16) => &x86::BFLOAT16_AVX512_BF16,
        #[cfg(target_arch = "x86_64")]
        (Element::Bfloat16, Isa::Avx512) => &x86::BFLOAT16_AVX512,
        #[cfg(target_arch = "x86_64")]
        (Element::Bfloat16, Isa::Avx2) => &x86::BFLOAT16_AVX2,
        (Element::Float32, _) => &portable::FLOAT32,
        (Element::Bfloat16, _) => &portable::BFLOAT16,
    }
}

#[cfg(test)]
mod tests;
