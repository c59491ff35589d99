//! Weights of the input's dtype, float32, bfloat16 or float16: their panels, and the choice of a micro-kernel.
//!
//! An output element is one sum over the input features in float32. The matrix and the instruction set decide its
//! order.

#[cfg(target_arch = "x86_64")]
mod amx;
mod portable;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::output::{Output, PANEL};
use super::{Content, Linear, Part, Source, equal_parts, lowest};
use crate::dtype::{DType, from_bfloat16, from_float16, round_to_bfloat16, round_to_float16};
use crate::isa::Isa;
use tile::{Multiply, Tile};

/// Bytes of a step for each of a panel's columns: one float32 or float16, or two bfloat16.
const fn cell_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Float32 | DType::Bfloat16 => 4,
        DType::Float16 => 2,
    }
}

/// Bytes of a panel's step.
const fn step_bytes(dtype: DType) -> usize {
    PANEL * cell_bytes(dtype)
}

/// Features of a panel's step.
fn step_features(dtype: DType) -> usize {
    cell_bytes(dtype) / dtype.bytes()
}

/// Features of rows that are packed together: their output stays in the L1 cache. Blocks of every source end there.
const FEATURES_AT_ONCE: usize = 256;

/// Bytes of a panel: steps over the inputs, zero where either side ends early.
pub(super) fn panel_bytes(linear: &Linear) -> usize {
    linear.in_features.div_ceil(step_features(linear.dtype)) * step_bytes(linear.dtype)
}

/// Pack rows of the matrix as the columns of a zeroed panel. Gives the first that is not finite.
///
/// All rows advance together, so that writes are close to each other.
pub(super) fn pack_panel(linear: &Linear, rows: &[Option<Content>], panel: &mut [u8]) -> Option<usize> {
    let mut odd = None;
    let (features, dtype) = (linear.in_features, linear.dtype);
    for first in (0..features).step_by(FEATURES_AT_ONCE) {
        let mut numbers = [0.0; FEATURES_AT_ONCE];
        let numbers = &mut numbers[..FEATURES_AT_ONCE.min(features - first)];
        let panel = &mut panel[first / step_features(dtype) * step_bytes(dtype)..];
        for (column, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let is_finite = if row.source == Source::Elements(dtype) {
                let bytes = [first, first + numbers.len()].map(|feature| feature * dtype.bytes());
                let elements = &row.bytes[bytes[0]..bytes[1]];
                match dtype {
                    DType::Float32 => copy_elements(elements, column, panel, f32::from_ne_bytes),
                    DType::Bfloat16 => copy_bfloat16(elements, column, panel),
                    DType::Float16 => {
                        copy_elements(elements, column, panel, |bits| from_float16(u16::from_ne_bytes(bits)))
                    }
                }
            } else {
                row.numbers(first, numbers);
                write_numbers(dtype, numbers, column, panel);
                numbers.iter().fold(true, |finite, number| finite & number.is_finite())
            };
            if !is_finite {
                odd = Some(lowest(odd, column));
            }
        }
    }
    odd
}

/// Copy a row's elements as they are, one a step. Gives whether all are finite.
fn copy_elements<const BYTES: usize>(
    elements: &[u8],
    column: usize,
    panel: &mut [u8],
    number: impl Fn([u8; BYTES]) -> f32,
) -> bool {
    let elements = elements.as_chunks::<BYTES>().0;
    for (element, step) in elements.iter().zip(panel.chunks_exact_mut(PANEL * BYTES)) {
        step[column * BYTES..column * BYTES + BYTES].copy_from_slice(element);
    }
    elements.iter().fold(true, |finite, &bits| finite & number(bits).is_finite())
}

/// Copy a row's bfloat16 elements as they are, two at once. Gives whether all are finite.
fn copy_bfloat16(elements: &[u8], column: usize, panel: &mut [u8]) -> bool {
    let (cells, half) = elements.as_chunks::<4>();
    let steps = panel.chunks_exact_mut(step_bytes(DType::Bfloat16));
    let mut steps = steps.map(|step| &mut step[column * 4..column * 4 + 4]);
    for (cell, out) in cells.iter().zip(&mut steps) {
        out.copy_from_slice(cell);
    }
    if !half.is_empty() {
        steps.next().expect("a panel has a step for the last feature")[..half.len()].copy_from_slice(half);
    }
    let is_finite = |&bits: &[u8; 2]| from_bfloat16(u16::from_ne_bytes(bits)).is_finite();
    elements.as_chunks().0.iter().fold(true, |finite, bits| finite & is_finite(bits))
}

fn write_numbers(dtype: DType, numbers: &[f32], column: usize, panel: &mut [u8]) {
    let steps = panel.chunks_exact_mut(step_bytes(dtype));
    match dtype {
        DType::Float32 => {
            for (number, step) in numbers.iter().zip(steps) {
                step[column * 4..column * 4 + 4].copy_from_slice(&number.to_ne_bytes());
            }
        }
        DType::Bfloat16 => {
            for (pair, step) in numbers.chunks(2).zip(steps) {
                let halves = [pair[0], pair.get(1).copied().unwrap_or(0.0)].map(round_to_bfloat16);
                let [[a, b], [c, d]] = halves.map(u16::to_ne_bytes);
                step[column * 4..column * 4 + 4].copy_from_slice(&[a, b, c, d]);
            }
        }
        DType::Float16 => {
            for (&number, step) in numbers.iter().zip(steps) {
                step[column * 2..column * 2 + 2].copy_from_slice(&round_to_float16(number).to_ne_bytes());
            }
        }
    }
}

/// Copy one column of a panel, which is a row of the matrix, back out.
pub(super) fn unpack_column(dtype: DType, panel: &[u8], column: usize, out: &mut [u8]) {
    let bytes = cell_bytes(dtype);
    for (cell, step) in out.chunks_mut(bytes).zip(panel.chunks_exact(step_bytes(dtype))) {
        cell.copy_from_slice(&step[column * bytes..column * bytes + cell.len()]);
    }
}

/// Multiply some rows with one panel.
///
/// # Safety
///
/// See `tile::Multiply`: x is the first input row, of the linear's dtype, and `part` describes the rest.
pub(super) unsafe fn multiply(linear: &Linear, isa: Isa, x: *const u8, x_stride: usize, part: &Part, output: Output) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx && linear.dtype == DType::Bfloat16 && amx::takes(linear.in_features) {
        let start = part.rows.start;
        // SAFETY: as the caller promises: the rows and the panel are there.
        unsafe {
            let (x, output) = (x.add(start * x_stride), output.rows_from(start));
            let tile = Tile { x, x_stride, weights: part.panel, in_features: linear.in_features, output };
            amx::multiply(&tile, part.rows.len());
        }
        return;
    }
    let tiles = tiles(linear.dtype, isa);
    for rows in equal_parts(part.rows.clone(), tiles.len()) {
        // SAFETY: as the caller promises: the rows and the panel are there.
        unsafe {
            let tile = Tile {
                x: x.add(rows.start * x_stride),
                x_stride,
                weights: part.panel,
                in_features: linear.in_features,
                output: output.rows_from(rows.start),
            };
            tiles[rows.len() - 1](&tile);
        }
    }
}

/// The kernels for 1, 2, 3 and more rows.
fn tiles(dtype: DType, isa: Isa) -> &'static [Multiply] {
    match (dtype, isa) {
        #[cfg(target_arch = "x86_64")]
        (DType::Float32, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => &x86::FLOAT32_AVX512,
        #[cfg(target_arch = "x86_64")]
        (DType::Float32, Isa::Avx2 | Isa::AvxVnni) => &x86::FLOAT32_AVX2,
        #[cfg(target_arch = "x86_64")]
        (DType::Bfloat16, Isa::Avx512Bf16) => &x86::BFLOAT16_AVX512_BF16,
        #[cfg(target_arch = "x86_64")]
        (DType::Bfloat16, Isa::Avx512 | Isa::Amx) => &x86::BFLOAT16_AVX512,
        #[cfg(target_arch = "x86_64")]
        (DType::Bfloat16, Isa::Avx2 | Isa::AvxVnni) => &x86::BFLOAT16_AVX2,
        #[cfg(target_arch = "x86_64")]
        (DType::Float16, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => &x86::FLOAT16_AVX512,
        #[cfg(target_arch = "x86_64")]
        (DType::Float16, Isa::Avx2 | Isa::AvxVnni) => &x86::FLOAT16_AVX2,
        (DType::Float32, _) => &portable::FLOAT32,
        (DType::Bfloat16, _) => &portable::BFLOAT16,
        (DType::Float16, _) => &portable::FLOAT16,
    }
}
