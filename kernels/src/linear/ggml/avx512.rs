//! The micro-kernel in AVX-512 with VNNI: all products and sums of a few rows stay in registers.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_srli_epi16,
};

use super::tile::{Tile, Weights};
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::linear::{AHEAD, for_rows};

/// # Safety
///
/// As for `IntegerFormat::multiply`.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // Two products and two sums a row, among 32 registers. Where 4 bits are unpacked for each part, fewer parts are
    // worth that sums wait in memory until a group ends.
    let most = if W::NIBBLES { 8 } else { 6 };
    let kernels: [unsafe fn(&Tile); 8] = for_rows!(rows<W>: 1 2 3 4 5 6 7 8);
    // SAFETY: as the caller promises.
    unsafe { tile.parts(most).for_each(|part| kernels[part.rows - 1](&part)) };
}

/// # Safety
///
/// As for `IntegerFormat::multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows<W: Weights, const ROWS: usize>(tile: &Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut weights = tile.panel;
    // SAFETY: as the caller promises.
    unsafe {
        for group in 0..tile.num_chunks {
            let factors = tile.chunk_factors(group);
            let factors: [_; ROWS] = std::array::from_fn(|row| factors.add(row).read());
            let mut products = factors.map(|factors| [_mm512_set1_epi32(factors.start); 2]);
            let x = tile.chunk(group, 0);
            let x = |row: usize, step: usize| x.add(row * GROUP).cast::<i32>().add(step).read_unaligned();
            for step in 0..GROUP / STEP_FEATURES / if W::NIBBLES { 2 } else { 1 } {
                let bytes = next_vectors(&mut weights);
                if W::NIBBLES {
                    add_dots(&mut products, low_nibbles(bytes), |row| x(row, step));
                    add_dots(&mut products, high_nibbles(bytes), |row| x(row, step + GROUP / STEP_FEATURES / 2));
                } else {
                    add_dots(&mut products, bytes, |row| x(row, step));
                }
            }
            let scales = next_half_floats(&mut weights);
            for ((sums, products), factors) in sums.iter_mut().zip(products).zip(factors) {
                let scale = _mm512_set1_ps(factors.scale);
                for half in 0..2 {
                    let scale = _mm512_mul_ps(scale, scales[half]);
                    sums[half] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products[half]), sums[half]);
                }
            }
            if W::HAS_MIN {
                let mins = next_half_floats(&mut weights);
                for (sums, factors) in sums.iter_mut().zip(factors) {
                    let scaled_sum = _mm512_set1_ps(factors.scaled_sum);
                    for half in 0..2 {
                        sums[half] = _mm512_fmadd_ps(mins[half], scaled_sum, sums[half]);
                    }
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            tile.output.store_avx512(row, 0, sums[0]);
            tile.output.store_avx512(row, 16, sums[1]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dots(products: &mut [[__m512i; 2]], weights: [__m512i; 2], x: impl Fn(usize) -> i32) {
    for (row, products) in products.iter_mut().enumerate() {
        let x = _mm512_set1_epi32(x(row));
        products[0] = _mm512_dpbusd_epi32(products[0], weights[0], x);
        products[1] = _mm512_dpbusd_epi32(products[1], weights[1], x);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn low_nibbles(bytes: [__m512i; 2]) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(0xf);
    [_mm512_and_si512(bytes[0], mask), _mm512_and_si512(bytes[1], mask)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn high_nibbles(bytes: [__m512i; 2]) -> [__m512i; 2] {
    low_nibbles([_mm512_srli_epi16::<4>(bytes[0]), _mm512_srli_epi16::<4>(bytes[1])])
}

/// # Safety
///
/// A step's bytes are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn next_vectors(weights: &mut *const u8) -> [__m512i; 2] {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        let here = *weights;
        _mm_prefetch::<_MM_HINT_T0>(here.wrapping_add(AHEAD).cast());
        _mm_prefetch::<_MM_HINT_T0>(here.wrapping_add(AHEAD + 64).cast());
        *weights = here.add(STEP_BYTES);
        [_mm512_loadu_si512(here.cast()), _mm512_loadu_si512(here.add(64).cast())]
    }
}

/// # Safety
///
/// A panel's float16 are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn next_half_floats(weights: &mut *const u8) -> [__m512; 2] {
    // SAFETY: as the caller promises.
    let [first, second]: [__m256i; 2] = unsafe {
        let here = *weights;
        _mm_prefetch::<_MM_HINT_T0>(here.wrapping_add(AHEAD).cast());
        *weights = here.add(PANEL * 2);
        [_mm256_loadu_si256(here.cast()), _mm256_loadu_si256(here.add(32).cast())]
    };
    [_mm512_cvtph_ps(first), _mm512_cvtph_ps(second)]
}
