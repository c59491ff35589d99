//! Sums of a step's integer products, where no single instruction computes them. Knows neither layouts nor scales.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_madd_epi16, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16,
};

use super::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// Add a step's products with one row to the sums of all columns.
pub(super) fn portable(products: &mut [i32; PANEL], cells: &[u8; STEP_BYTES], x: [i8; STEP_FEATURES]) {
    for (product, cell) in products.iter_mut().zip(cells.as_chunks::<STEP_FEATURES>().0) {
        let dot: i32 = cell.iter().zip(x).map(|(&weight, x)| i32::from(weight) * i32::from(x)).sum();
        *product = product.wrapping_add(dot);
    }
}

/// Add a step's products with several rows to the sums of 16 columns. `x` gives the 4 integers of a row.
///
/// Even and odd features are multiplied apart, each as 16 bits: sums of two cannot overflow.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn avx2(products: &mut [[__m256i; 2]], weights: [__m256i; 2], x: impl Fn(usize) -> i32) {
    let low_bytes = _mm256_set1_epi16(0xff);
    let evens = weights.map(|weights| _mm256_and_si256(weights, low_bytes));
    let odds = weights.map(|weights| _mm256_srli_epi16::<8>(weights));
    for (row, products) in products.iter_mut().enumerate() {
        let x = _mm256_set1_epi32(x(row));
        let (x_evens, x_odds) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
        for half in 0..2 {
            let dots = _mm256_add_epi32(_mm256_madd_epi16(evens[half], x_evens), _mm256_madd_epi16(odds[half], x_odds));
            products[half] = _mm256_add_epi32(products[half], dots);
        }
    }
}
