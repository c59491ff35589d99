//! The micro-kernel in AVX2: products of 16 bits, whose sums of two cannot overflow.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16,
    _mm256_storeu_ps,
};

use super::tile::{Tile, Weights};
use crate::linear::for_rows;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// # Safety
///
/// As for `IntegerFormat::multiply`.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // Two products and two sums a row, of half of the panel at a time, among 16 registers.
    let kernels: [unsafe fn(&Tile); 2] = for_rows!(rows<W>: 1 2);
    // SAFETY: as the caller promises.
    unsafe { tile.parts(kernels.len()).for_each(|part| kernels[part.rows - 1](&part)) };
}

/// # Safety
///
/// As for `IntegerFormat::multiply`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<W: Weights, const ROWS: usize>(tile: &Tile) {
    let mut out = [[0.0; PANEL]; ROWS];
    for column in [0, PANEL / 2] {
        // SAFETY: as the caller promises.
        let sums = unsafe { half_panel::<W, ROWS>(tile, column) };
        for (out, sums) in out.iter_mut().zip(sums) {
            let (first, second) = out[column..column + 16].split_at_mut(8);
            // SAFETY: each has 8 places.
            unsafe {
                _mm256_storeu_ps(first.as_mut_ptr(), sums[0]);
                _mm256_storeu_ps(second.as_mut_ptr(), sums[1]);
            }
        }
    }
    for (row, out) in out.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, out) };
    }
}

/// The sums of 16 columns.
///
/// # Safety
///
/// As for `IntegerFormat::multiply`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_panel<W: Weights, const ROWS: usize>(tile: &Tile, column: usize) -> [[__m256; 2]; ROWS] {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    let mut weights = tile.panel;
    // SAFETY: as the caller promises.
    unsafe {
        for group in 0..tile.num_chunks {
            let factors = tile.chunk_factors(group);
            let factors: [_; ROWS] = std::array::from_fn(|row| factors.add(row).read());
            let mut products = factors.map(|factors| [_mm256_set1_epi32(factors.start); 2]);
            let x = tile.chunk(group, 0);
            let x = |row: usize, step: usize| x.add(row * GROUP).cast::<i32>().add(step).read_unaligned();
            for step in 0..GROUP / STEP_FEATURES / if W::NIBBLES { 2 } else { 1 } {
                let bytes = next_vectors(&mut weights, column);
                if W::NIBBLES {
                    add_dots(&mut products, low_nibbles(bytes), |row| x(row, step));
                    add_dots(&mut products, high_nibbles(bytes), |row| x(row, step + GROUP / STEP_FEATURES / 2));
                } else {
                    add_dots(&mut products, bytes, |row| x(row, step));
                }
            }
            let scales = next_half_floats(&mut weights, column);
            for ((sums, products), factors) in sums.iter_mut().zip(products).zip(factors) {
                let scale = _mm256_set1_ps(factors.scale);
                for half in 0..2 {
                    let scale = _mm256_mul_ps(scale, scales[half]);
                    sums[half] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(products[half]), sums[half]);
                }
            }
            if W::HAS_MIN {
                let mins = next_half_floats(&mut weights, column);
                for (sums, factors) in sums.iter_mut().zip(factors) {
                    let scaled_sum = _mm256_set1_ps(factors.scaled_sum);
                    for half in 0..2 {
                        sums[half] = _mm256_fmadd_ps(mins[half], scaled_sum, sums[half]);
                    }
                }
            }
        }
    }
    sums
}

/// The features of even number and those of odd number apart, each as 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn add_dots(products: &mut [[__m256i; 2]], weights: [__m256i; 2], x: impl Fn(usize) -> i32) {
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

#[inline]
#[target_feature(enable = "avx2")]
fn low_nibbles(bytes: [__m256i; 2]) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(0xf);
    [_mm256_and_si256(bytes[0], mask), _mm256_and_si256(bytes[1], mask)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn high_nibbles(bytes: [__m256i; 2]) -> [__m256i; 2] {
    low_nibbles([_mm256_srli_epi16::<4>(bytes[0]), _mm256_srli_epi16::<4>(bytes[1])])
}

/// # Safety
///
/// A step's bytes are there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn next_vectors(weights: &mut *const u8, column: usize) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let here = weights.add(column * STEP_FEATURES);
        *weights = weights.add(STEP_BYTES);
        [_mm256_loadu_si256(here.cast()), _mm256_loadu_si256(here.add(32).cast())]
    }
}

/// # Safety
///
/// A panel's float16 are there.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn next_half_floats(weights: &mut *const u8, column: usize) -> [__m256; 2] {
    // SAFETY: as the caller promises.
    let [first, second]: [__m128i; 2] = unsafe {
        let here = weights.add(column * 2);
        *weights = weights.add(PANEL * 2);
        [_mm_loadu_si128(here.cast()), _mm_loadu_si128(here.add(16).cast())]
    };
    [_mm256_cvtph_ps(first), _mm256_cvtph_ps(second)]
}
