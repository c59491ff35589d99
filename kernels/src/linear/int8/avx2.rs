//! The micro-kernel in AVX2: products of 16 bits, whose sums of two cannot overflow.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16, _mm256_storeu_ps,
};

use super::tile::{CHUNK, PLANES, Tile};
use crate::linear::output::{PANEL, SIDE, STEP_BYTES, STEP_FEATURES};

/// Columns of a vector, of which there are two at a time.
const COLUMNS: usize = 8;

/// # Safety
///
/// As for `IntegerFormat::multiply`, with integers in bytes.
pub(super) unsafe fn multiply(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { tile.parts(1).for_each(|row| multiply_row(&row)) };
}

/// # Safety
///
/// As for `multiply`.
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

/// Of each plane, the products of 16 columns.
///
/// # Safety
///
/// As for `multiply`.
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
                let x =
                    std::array::from_fn(|plane| x.add(plane * SIDE * CHUNK / STEP_FEATURES + step).read_unaligned());
                add_dots(&mut products, bytes, x);
            }
        }
    }
    products
}

/// The features of even number and those of odd number apart, each as 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn add_dots(products: &mut [[__m256i; 2]; PLANES], weights: [__m256i; 2], x: [i32; PLANES]) {
    let low_bytes = _mm256_set1_epi16(0xff);
    let evens = weights.map(|weights| _mm256_and_si256(weights, low_bytes));
    let odds = weights.map(|weights| _mm256_srli_epi16::<8>(weights));
    for (products, x) in products.iter_mut().zip(x) {
        let x = _mm256_set1_epi32(x);
        let (x_evens, x_odds) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
        for half in 0..2 {
            let dots = _mm256_add_epi32(_mm256_madd_epi16(evens[half], x_evens), _mm256_madd_epi16(odds[half], x_odds));
            products[half] = _mm256_add_epi32(products[half], dots);
        }
    }
}
