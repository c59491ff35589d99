//! The micro-kernels in AVX2 and AVX-512: every sum stays in a register from the first feature to the last.

use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_and_si256,
    _mm256_castsi256_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm512_and_si512, _mm512_castsi512_ps,
    _mm512_cvtph_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_maskz_loadu_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::tile::{Multiply, Tile};
use crate::dtype::from_float16;
use crate::linear::output::PANEL;
use crate::linear::{for_rows, prefetch_distance};

// Two sums per row, two weights and an input among 32 registers; half of it among 16.
pub(super) const FLOAT32_AVX512: [Multiply; 12] = for_rows!(float32_avx512: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(super) const BFLOAT16_AVX512_BF16: [Multiply; 12] = for_rows!(bfloat16_avx512_bf16: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(super) const BFLOAT16_AVX512: [Multiply; 12] = for_rows!(bfloat16_avx512: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(super) const FLOAT16_AVX512: [Multiply; 12] = for_rows!(float16_avx512: 1 2 3 4 5 6 7 8 9 10 11 12);
pub(super) const FLOAT32_AVX2: [Multiply; 6] = for_rows!(float32_avx2: 1 2 3 4 5 6);
pub(super) const BFLOAT16_AVX2: [Multiply; 4] = for_rows!(bfloat16_avx2: 1 2 3 4);
pub(super) const FLOAT16_AVX2: [Multiply; 6] = for_rows!(float16_avx2: 1 2 3 4 5 6);

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx512f")]
unsafe fn float32_avx512<const ROWS: usize>(tile: &Tile) {
    let distance = prefetch_distance(ROWS);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: as the caller promises.
    unsafe {
        for feature in 0..tile.in_features {
            let weights = weights_512(tile, feature, distance).map(|weights| _mm512_castsi512_ps(weights));
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = tile.x.add(row * tile.x_stride).cast::<f32>().add(feature);
                let x = _mm512_set1_ps(x.read_unaligned());
                sums[0] = _mm512_fmadd_ps(x, weights[0], sums[0]);
                sums[1] = _mm512_fmadd_ps(x, weights[1], sums[1]);
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            tile.output.store(row, &array_512(sums));
        }
    }
}

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn bfloat16_avx512_bf16<const ROWS: usize>(tile: &Tile) {
    let distance = prefetch_distance(ROWS);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    // SAFETY: as the caller promises.
    unsafe {
        for pair in 0..tile.in_features / 2 {
            add_dots_512(&mut sums, weights_512(tile, pair, distance), |row| x_pair(tile, row, pair));
        }
        if !tile.in_features.is_multiple_of(2) {
            add_dots_512(&mut sums, weights_512(tile, tile.in_features / 2, distance), |row| tile.last_bfloat16(row));
        }
        for (row, sums) in sums.into_iter().enumerate() {
            tile.output.store(row, &array_512(sums));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_dots_512(sums: &mut [[__m512; 2]], weights: [__m512i; 2], x: impl Fn(usize) -> u32) {
    let weights = weights.map(bfloat16s);
    for (row, sums) in sums.iter_mut().enumerate() {
        let x = bfloat16s(_mm512_set1_epi32(x(row).cast_signed()));
        sums[0] = _mm512_dpbf16_ps(sums[0], weights[0], x);
        sums[1] = _mm512_dpbf16_ps(sums[1], weights[1], x);
    }
}

#[inline]
fn bfloat16s(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes in which every bit pattern has a meaning.
    unsafe { std::mem::transmute(pairs) }
}

/// Pairs of features whose inputs are converted to float32 at once: they stay in the L1 cache.
const PAIRS_AT_ONCE: usize = 128;

/// The low and the high halves of some pairs of an input row.
type Inputs = [[f32; PAIRS_AT_ONCE]; 2];

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bfloat16_avx512<const ROWS: usize>(tile: &Tile) {
    let distance = prefetch_distance(ROWS);
    let high_half = _mm512_set1_epi32(HIGH_HALF);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut inputs = [[[0.0; PAIRS_AT_ONCE]; 2]; ROWS];
    let pairs = tile.in_features.div_ceil(2);
    // SAFETY: as the caller promises; the inputs have the pairs that are read.
    unsafe {
        for first in (0..pairs).step_by(PAIRS_AT_ONCE) {
            for (row, inputs) in inputs.iter_mut().enumerate() {
                widen_pairs(tile, row, first, inputs);
            }
            for pair in 0..PAIRS_AT_ONCE.min(pairs - first) {
                let weights = weights_512(tile, first + pair, distance);
                let lows = weights.map(|weights| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(weights)));
                let highs = weights.map(|weights| _mm512_castsi512_ps(_mm512_and_si512(weights, high_half)));
                for (sums, inputs) in sums.iter_mut().zip(&inputs) {
                    let low = _mm512_set1_ps(*inputs[0].get_unchecked(pair));
                    sums[0] = _mm512_fmadd_ps(low, lows[0], sums[0]);
                    sums[1] = _mm512_fmadd_ps(low, lows[1], sums[1]);
                    let high = _mm512_set1_ps(*inputs[1].get_unchecked(pair));
                    sums[0] = _mm512_fmadd_ps(high, highs[0], sums[0]);
                    sums[1] = _mm512_fmadd_ps(high, highs[1], sums[1]);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            tile.output.store(row, &array_512(sums));
        }
    }
}

/// Convert pairs of a row to float32, from the pair `first` on; zeros follow its last element.
///
/// # Safety
///
/// See `Multiply`; the row has the first pair.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen_pairs(tile: &Tile, row: usize, first: usize, inputs: &mut Inputs) {
    let elements = (tile.in_features - first * 2).min(PAIRS_AT_ONCE * 2);
    for start in (0..elements).step_by(32) {
        let mask = u32::MAX >> 32_usize.saturating_sub(elements - start);
        // SAFETY: as the caller promises; elements that the row does not have are not read, and there is room for all.
        unsafe {
            let x = tile.x.add(row * tile.x_stride).cast::<i16>().add(first * 2 + start);
            let x = _mm512_maskz_loadu_epi16(mask, x);
            let [lows, highs] = inputs.each_mut().map(|half| half.as_mut_ptr().add(start / 2));
            _mm512_storeu_ps(lows, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)));
            _mm512_storeu_ps(highs, _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(HIGH_HALF))));
        }
    }
}

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx2,fma")]
unsafe fn float32_avx2<const ROWS: usize>(tile: &Tile) {
    let mut sums = [[0.0; PANEL]; ROWS];
    for column in (0..PANEL).step_by(16) {
        let mut halves = [[_mm256_setzero_ps(); 2]; ROWS];
        // SAFETY: as the caller promises.
        unsafe {
            for feature in 0..tile.in_features {
                let weights = tile.weights.cast::<f32>().add(feature * PANEL + column);
                let weights = [_mm256_loadu_ps(weights), _mm256_loadu_ps(weights.add(8))];
                for (row, halves) in halves.iter_mut().enumerate() {
                    let x = tile.x.add(row * tile.x_stride).cast::<f32>().add(feature);
                    let x = _mm256_set1_ps(x.read_unaligned());
                    halves[0] = _mm256_fmadd_ps(x, weights[0], halves[0]);
                    halves[1] = _mm256_fmadd_ps(x, weights[1], halves[1]);
                }
            }
        }
        put_256(&mut sums, column, halves);
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, sums) };
    }
}

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx2,fma")]
unsafe fn bfloat16_avx2<const ROWS: usize>(tile: &Tile) {
    let mut sums = [[0.0; PANEL]; ROWS];
    for column in (0..PANEL).step_by(16) {
        let mut halves = [[_mm256_setzero_ps(); 2]; ROWS];
        // SAFETY: as the caller promises.
        unsafe {
            for pair in 0..tile.in_features / 2 {
                add_pairs_256(&mut halves, weights_256(tile, pair, column), |row| x_pair(tile, row, pair));
            }
            if !tile.in_features.is_multiple_of(2) {
                let weights = weights_256(tile, tile.in_features / 2, column);
                add_pairs_256(&mut halves, weights, |row| tile.last_bfloat16(row));
            }
        }
        put_256(&mut sums, column, halves);
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, sums) };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_pairs_256(sums: &mut [[__m256; 2]], weights: [__m256i; 2], x: impl Fn(usize) -> u32) {
    let high = _mm256_set1_epi32(HIGH_HALF);
    for (column, weights) in weights.into_iter().enumerate() {
        let lows = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(weights));
        let highs = _mm256_castsi256_ps(_mm256_and_si256(weights, high));
        for (row, sums) in sums.iter_mut().enumerate() {
            let [x_low, x_high] = halves(x(row));
            sums[column] = _mm256_fmadd_ps(_mm256_set1_ps(x_low), lows, sums[column]);
            sums[column] = _mm256_fmadd_ps(_mm256_set1_ps(x_high), highs, sums[column]);
        }
    }
}

/// Features whose inputs are converted from float16 at once: they stay in the L1 cache.
const FEATURES_AT_ONCE: usize = 2 * PAIRS_AT_ONCE;

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn float16_avx512<const ROWS: usize>(tile: &Tile) {
    let distance = prefetch_distance(ROWS);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut inputs = [[0.0; FEATURES_AT_ONCE]; ROWS];
    for first in (0..tile.in_features).step_by(FEATURES_AT_ONCE) {
        let count = FEATURES_AT_ONCE.min(tile.in_features - first);
        // SAFETY: as the caller promises; the inputs have the features that are read.
        unsafe {
            for (row, inputs) in inputs.iter_mut().enumerate() {
                widen_halves(tile, row, first, &mut inputs[..count]);
            }
            for feature in 0..count {
                let weights = tile.weights.add((first + feature) * PANEL * 2);
                _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(distance).cast());
                let weights = [0, PANEL].map(|half| _mm512_cvtph_ps(_mm256_loadu_si256(weights.add(half).cast())));
                for (sums, inputs) in sums.iter_mut().zip(&inputs) {
                    let x = _mm512_set1_ps(*inputs.get_unchecked(feature));
                    sums[0] = _mm512_fmadd_ps(x, weights[0], sums[0]);
                    sums[1] = _mm512_fmadd_ps(x, weights[1], sums[1]);
                }
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, &array_512(sums)) };
    }
}

/// # Safety
///
/// See `Multiply`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float16_avx2<const ROWS: usize>(tile: &Tile) {
    let mut sums = [[0.0; PANEL]; ROWS];
    let mut inputs = [[0.0; FEATURES_AT_ONCE]; ROWS];
    let mut halves = [[[_mm256_setzero_ps(); 2]; ROWS]; 2];
    for first in (0..tile.in_features).step_by(FEATURES_AT_ONCE) {
        let count = FEATURES_AT_ONCE.min(tile.in_features - first);
        // SAFETY: as the caller promises; the inputs have the features that are read.
        unsafe {
            for (row, inputs) in inputs.iter_mut().enumerate() {
                widen_halves(tile, row, first, &mut inputs[..count]);
            }
            for (half, kept) in halves.iter_mut().enumerate() {
                let mut halves = *kept; // in registers
                for feature in 0..count {
                    let weights = tile.weights.cast::<u16>().add((first + feature) * PANEL + 16 * half);
                    let weights = [0, 8].map(|column| _mm256_cvtph_ps(_mm_loadu_si128(weights.add(column).cast())));
                    for (halves, inputs) in halves.iter_mut().zip(&inputs) {
                        let x = _mm256_set1_ps(*inputs.get_unchecked(feature));
                        halves[0] = _mm256_fmadd_ps(x, weights[0], halves[0]);
                        halves[1] = _mm256_fmadd_ps(x, weights[1], halves[1]);
                    }
                }
                *kept = halves;
            }
        }
    }
    for (half, halves) in halves.into_iter().enumerate() {
        put_256(&mut sums, 16 * half, halves);
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, sums) };
    }
}

/// Convert float16 elements of a row to float32, from the feature `first` on.
///
/// # Safety
///
/// See `Multiply`; the row has as many features from there on as there are inputs.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_halves(tile: &Tile, row: usize, first: usize, inputs: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe {
        let x = tile.x.add(row * tile.x_stride).cast::<u16>().add(first);
        let (eights, rest) = inputs.as_chunks_mut::<8>();
        for (index, eight) in eights.iter_mut().enumerate() {
            _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(x.add(8 * index).cast())));
        }
        for (index, number) in rest.iter_mut().enumerate() {
            *number = from_float16(x.add(8 * eights.len() + index).read_unaligned());
        }
    }
}

const HIGH_HALF: i32 = 0xffff_0000_u32.cast_signed();

#[inline]
fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// # Safety
///
/// See `Multiply`; the row has the whole pair.
#[inline]
unsafe fn x_pair(tile: &Tile, row: usize, pair: usize) -> u32 {
    // SAFETY: as the caller promises.
    unsafe { tile.x.add(row * tile.x_stride).cast::<u32>().add(pair).read_unaligned() }
}

/// # Safety
///
/// See `Multiply`; the panel has the step.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn weights_512(tile: &Tile, step: usize, distance: usize) -> [__m512i; 2] {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        let weights = tile.weights.add(step * PANEL * 4);
        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(distance).cast());
        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(distance + 64).cast());
        [_mm512_loadu_si512(weights.cast()), _mm512_loadu_si512(weights.add(64).cast())]
    }
}

/// # Safety
///
/// See `Multiply`; the panel has the step, and 16 columns from `column` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn weights_256(tile: &Tile, step: usize, column: usize) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let weights = tile.weights.cast::<i32>().add(step * PANEL + column);
        [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(8).cast())]
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn array_512(sums: [__m512; 2]) -> [f32; PANEL] {
    let mut array = [0.0; PANEL];
    let (first, second) = array.split_at_mut(16);
    // SAFETY: each half has 16 places.
    unsafe {
        _mm512_storeu_ps(first.as_mut_ptr(), sums[0]);
        _mm512_storeu_ps(second.as_mut_ptr(), sums[1]);
    }
    array
}

#[inline]
#[target_feature(enable = "avx2")]
fn put_256(sums: &mut [[f32; PANEL]], column: usize, halves: impl IntoIterator<Item = [__m256; 2]>) {
    for (sums, halves) in sums.iter_mut().zip(halves) {
        let (first, second) = sums[column..column + 16].split_at_mut(8);
        // SAFETY: each half has 8 places.
        unsafe {
            _mm256_storeu_ps(first.as_mut_ptr(), halves[0]);
            _mm256_storeu_ps(second.as_mut_ptr(), halves[1]);
        }
    }
}
