//! The micro-kernels in AVX2, with and without VNNI: vectors of 8 columns.
#![expect(clippy::inline_always, reason = "a function takes its caller's instructions only where it is inlined")]

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256, _mm256_storeu_ps,
};

use super::tile::{CHUNK, PLANES, Tile};
use crate::linear::dots::avx2::{Dots, Signed, Vnni};
use crate::linear::output::{PANEL, SIDE, STEP_BYTES, STEP_FEATURES};
use crate::linear::{for_rows, prefetch_distance};

/// Columns in a vector.
const COLUMNS: usize = 8;
/// Vectors at a time.
const VECTORS: usize = 2;

/// # Safety
///
/// See `IntegerFormat::multiply`, with integers in bytes.
pub(super) unsafe fn multiply(tile: &Tile) {
    let kernels: [unsafe fn(&Tile); 2] = for_rows!(rows: 1 2);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels) };
}

/// The same with VNNI.
///
/// # Safety
///
/// See `multiply`.
pub(super) unsafe fn multiply_vnni(tile: &Tile) {
    let kernels: [unsafe fn(&Tile); 2] = for_rows!(rows_vnni: 1 2);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels) };
}

/// # Safety
///
/// See `multiply`.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { columns::<Signed, ROWS>(tile) }
}

/// # Safety
///
/// See `multiply`.
#[cfg_attr(not(test), target_feature(enable = "avx2,fma,avxvnni"))]
#[cfg_attr(test, target_feature(enable = "avx512vl,avx512vnni"))]
unsafe fn rows_vnni<const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { columns::<Vnni, ROWS>(tile) }
}

/// # Safety
///
/// See `multiply`; the caller has the instructions of `D`.
#[inline(always)]
unsafe fn columns<D: Dots, const ROWS: usize>(tile: &Tile) {
    let mut out = [[0.0; PANEL]; ROWS];
    for first in (0..PANEL).step_by(VECTORS * COLUMNS) {
        // SAFETY: as the caller promises.
        unsafe {
            for (row, [high, low]) in products::<D, ROWS>(tile, first).into_iter().enumerate() {
                for (vector, (high, low)) in high.into_iter().zip(low).enumerate() {
                    let column = first + vector * COLUMNS;
                    let scales = _mm256_loadu_ps(tile.panel.scales.cast::<f32>().add(column));
                    let scale = _mm256_mul_ps(_mm256_set1_ps((*tile.factors.add(row)).scale), scales);
                    let sum = _mm256_fmadd_ps(_mm256_set1_ps(128.0), _mm256_cvtepi32_ps(high), _mm256_cvtepi32_ps(low));
                    _mm256_storeu_ps(out[row][column..column + COLUMNS].as_mut_ptr(), _mm256_mul_ps(scale, sum));
                }
            }
        }
    }
    for (row, out) in out.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, out) };
    }
}

/// The products of some vectors of columns with each plane of each row.
///
/// # Safety
///
/// See `columns`.
#[inline(always)]
unsafe fn products<D: Dots, const ROWS: usize>(tile: &Tile, column: usize) -> [[[__m256i; VECTORS]; PLANES]; ROWS] {
    let distance = prefetch_distance(ROWS);
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        let mut products = [[[_mm256_setzero_si256(); VECTORS]; PLANES]; ROWS];
        for (row, products) in products.iter_mut().enumerate().filter(|_| D::SUBTRACTS == 0) {
            *products = (*tile.factors.add(row)).starts.map(|start| [_mm256_set1_epi32(start); VECTORS]);
        }
        let mut weights = tile.panel.integers.add(column * STEP_FEATURES);
        for chunk in 0..tile.num_chunks {
            let x = tile.chunk(chunk, 0);
            for step in (0..CHUNK / STEP_FEATURES).step_by(2) {
                for line in [0, STEP_BYTES] {
                    _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(distance + line).cast());
                }
                let bytes = [0, 32]
                    .map(|at| [at, at + STEP_BYTES].map(|at| D::prepare(_mm256_loadu_si256(weights.add(at).cast()))));
                weights = weights.add(2 * STEP_BYTES);
                for (row, products) in products.iter_mut().enumerate() {
                    for (plane, products) in products.iter_mut().enumerate() {
                        let x = x.add((plane * SIDE + row) * CHUNK + step * STEP_FEATURES).cast::<i32>();
                        let x = [0, 1].map(|step| _mm256_set1_epi32(x.add(step).read_unaligned()));
                        for (product, bytes) in products.iter_mut().zip(bytes) {
                            *product = D::add(*product, bytes, x);
                        }
                    }
                }
            }
        }
        products
    }
}
