//! The micro-kernel in AVX2: products of 16 bits, whose sums of two cannot overflow.

use std::arch::x86_64::{
    __m256i, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_storeu_ps,
};

use super::tile::{CHUNK, PLANES, Tile};
use crate::linear::dots;
use crate::linear::output::{PANEL, SIDE, STEP_BYTES, STEP_FEATURES};

/// Columns in a vector; there are two vectors at a time.
const COLUMNS: usize = 8;

/// # Safety
///
/// See `IntegerFormat::multiply`, with integers in bytes.
pub(super) unsafe fn multiply(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { tile.parts(1).for_each(|row| multiply_row(&row)) };
}

/// # Safety
///
/// See `multiply`.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_row(row: &Tile) {
    let mut out = [0.0; PANEL];
    // SAFETY: as the caller promises.
    unsafe {
        for column in (0..PANEL).step_by(2 * COLUMNS) {
            let factors = row.factors.read();
            let [high, low] = products(row, factors.starts, column);
            for half in 0..2 {
                let at = column + half * COLUMNS;
                let [high, low] = [high, low].map(|products| _mm256_cvtepi32_ps(products[half]));
                let scales = _mm256_loadu_ps(row.panel.scales.cast::<f32>().add(at));
                let sum = _mm256_fmadd_ps(_mm256_set1_ps(128.0), high, low);
                let sum = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(factors.scale), scales), sum);
                _mm256_storeu_ps(out[at..at + COLUMNS].as_mut_ptr(), sum);
            }
        }
        row.output.store(0, &out);
    }
}

/// The products of 16 columns, for each plane.
///
/// # Safety
///
/// See `multiply`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn products(row: &Tile, starts: [i32; PLANES], column: usize) -> [[__m256i; 2]; PLANES] {
    let mut products = starts.map(|start| [_mm256_set1_epi32(start); 2]);
    // SAFETY: as the caller promises.
    unsafe {
        let mut weights = row.panel.integers.add(column * STEP_FEATURES);
        for chunk in 0..row.num_chunks {
            let x = row.chunk(chunk, 0).cast::<i32>();
            for step in 0..CHUNK / STEP_FEATURES {
                let bytes = [0, 32].map(|at| _mm256_loadu_si256(weights.add(at).cast()));
                weights = weights.add(STEP_BYTES);
                dots::avx2(&mut products, bytes, |plane| {
                    x.add(plane * SIDE * CHUNK / STEP_FEATURES + step).read_unaligned()
                });
            }
        }
    }
    products
}
