//! The micro-kernels in AVX2, with and without VNNI: vectors of 8 columns. Panels are unpacked along the way.
#![expect(clippy::inline_always, reason = "a function takes its caller's instructions only where it is inlined")]

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epi32, _mm256_mul_ps,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_storeu_ps,
};

use super::panel::PAIRS;
use super::tile::{Tile, Weights};
use crate::linear::dots::avx2::{Dots, Signed, UnsignedBytes, Vnni};
use crate::linear::format::{GROUP, SUPER_GROUPS, ScaleType};
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};
use crate::linear::{for_rows, prefetch_distance};

/// Columns in a vector.
const COLUMNS: usize = 8;
/// Bytes of a step in a vector.
const BYTES: usize = COLUMNS * STEP_FEATURES;

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is as `W` says.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    let kernels: [unsafe fn(&Tile); 4] = for_rows!(rows<W>: 1 2 3 4);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels) };
}

/// The same with VNNI.
///
/// # Safety
///
/// See `multiply`.
pub(super) unsafe fn multiply_vnni<W: Weights>(tile: &Tile) {
    let kernels: [unsafe fn(&Tile); 4] = for_rows!(rows_vnni<W>: 1 2 3 4);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels) };
}

/// # Safety
///
/// See `multiply`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<W: Weights, const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        match W::ENCODING.largest() {
            0..=16 => rows_in::<W, UnsignedBytes<8>, ROWS>(tile),
            17..=32 => rows_in::<W, UnsignedBytes<4>, ROWS>(tile),
            33..=64 => rows_in::<W, UnsignedBytes<2>, ROWS>(tile),
            _ => rows_in::<W, Signed, ROWS>(tile),
        }
    }
}

/// # Safety
///
/// See `multiply`.
#[cfg_attr(not(test), target_feature(enable = "avx2,fma,f16c,avxvnni"))]
#[cfg_attr(test, target_feature(enable = "avx512vl,avx512vnni"))]
unsafe fn rows_vnni<W: Weights, const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { rows_in::<W, Vnni, ROWS>(tile) }
}

/// # Safety
///
/// See `multiply`; the caller has the instructions of `D`.
#[inline(always)]
unsafe fn rows_in<W: Weights, D: Dots, const ROWS: usize>(tile: &Tile) {
    debug_assert!(W::ENCODING.largest() <= D::LARGEST && [0, W::ENCODING.offset].contains(&D::SUBTRACTS));
    // A sum for each row and vector, and two steps of each vector and row, among 16 registers.
    // SAFETY: as the caller promises.
    unsafe { if ROWS == 1 { columns::<W, D, ROWS, 4>(tile) } else { columns::<W, D, ROWS, 2>(tile) } }
}

/// Multiply some rows by `VECTORS` vectors of columns at a time.
///
/// # Safety
///
/// See `multiply`; the caller has the instructions of `D`.
#[inline(always)]
unsafe fn columns<W: Weights, D: Dots, const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
    let mut out = [[0.0; PANEL]; ROWS];
    for first in (0..PANEL).step_by(VECTORS * COLUMNS) {
        // SAFETY: as the caller promises.
        let sums = unsafe { sums::<W, D, ROWS, VECTORS>(tile, first) };
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sum) in out[first..].chunks_exact_mut(COLUMNS).zip(sums) {
                // SAFETY: there is room for a vector.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
            }
        }
    }
    for (row, out) in out.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, out) };
    }
}

/// # Safety
///
/// See `columns`.
#[inline(always)]
unsafe fn sums<W: Weights, D: Dots, const ROWS: usize, const VECTORS: usize>(
    tile: &Tile,
    column: usize,
) -> [[__m256; VECTORS]; ROWS] {
    let num_scales = W::ENCODING.scales_per_group;
    let distance = prefetch_distance(ROWS);
    let mut weights = tile.panel;
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
        let mut supers = [[_mm256_setzero_ps(); VECTORS]; 2];
        for group in 0..tile.num_chunks {
            if W::IN_SUPER_BLOCKS && group.is_multiple_of(SUPER_GROUPS) {
                for (index, supers) in supers.iter_mut().enumerate().take(1 + usize::from(W::HAS_MIN)) {
                    for (vector, factor) in supers.iter_mut().enumerate() {
                        *factor = half_floats(weights, index * PANEL + column + vector * COLUMNS);
                    }
                }
                weights = weights.add(W::SUPER_BYTES);
            }
            if column == 0 {
                for line in (0..W::GROUP_BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(distance + line).cast());
                }
            }
            add_half::<W, D, ROWS, VECTORS>(tile, group, weights, column, 0, supers[0], &mut sums);
            if W::HALVES {
                add_half::<W, D, ROWS, VECTORS>(tile, group, weights, column, 1, supers[0], &mut sums);
            }
            for half in 0..if W::HAS_MIN { num_scales } else { 0 } {
                let mut mins = supers[1];
                for (vector, min) in mins.iter_mut().enumerate() {
                    *min = factor::<W>(weights, *min, num_scales + half, column + vector * COLUMNS);
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let scaled_sum = _mm256_set1_ps((*tile.chunk_factors(group).add(row)).scaled_sums[half]);
                    for (sum, min) in sums.iter_mut().zip(mins) {
                        *sum = _mm256_fmadd_ps(min, scaled_sum, *sum);
                    }
                }
            }
            weights = weights.add(W::GROUP_BYTES);
        }
        sums
    }
}

/// Add the scaled products of a group, or of this half of it if it has halves.
///
/// # Safety
///
/// See `columns`.
#[inline(always)]
unsafe fn add_half<W: Weights, D: Dots, const ROWS: usize, const VECTORS: usize>(
    tile: &Tile,
    group: usize,
    weights: *const u8,
    column: usize,
    half: usize,
    supers: [__m256; VECTORS],
    sums: &mut [[__m256; VECTORS]; ROWS],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let factors = tile.chunk_factors(group);
        let mut products = [[_mm256_setzero_si256(); VECTORS]; ROWS];
        if W::ENCODING.offset != D::SUBTRACTS {
            for (row, products) in products.iter_mut().enumerate() {
                *products = [_mm256_set1_epi32((*factors.add(row)).starts[half]); VECTORS];
            }
        }
        let integers = weights.add(column * STEP_FEATURES);
        add_products::<W, D, ROWS, VECTORS>(integers, half, tile.chunk(group, 0), &mut products);
        let mut scales = supers;
        for (vector, scale) in scales.iter_mut().enumerate() {
            *scale = factor::<W>(weights, *scale, half, column + vector * COLUMNS);
        }
        for (row, (sums, products)) in sums.iter_mut().zip(products).enumerate() {
            let row_scale = _mm256_set1_ps((*factors.add(row)).scale);
            for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
                *sum = _mm256_fmadd_ps(_mm256_mul_ps(row_scale, scale), _mm256_cvtepi32_ps(product), *sum);
            }
        }
    }
}

/// Add up the products of a group, or of this half of it.
///
/// # Safety
///
/// See `columns`; `group` is at the integers of the first column, `x` at those of the first row.
#[inline(always)]
unsafe fn add_products<W: Weights, D: Dots, const ROWS: usize, const VECTORS: usize>(
    group: *const u8,
    half: usize,
    x: *const i8,
    products: &mut [[__m256i; VECTORS]; ROWS],
) {
    let pairs = PAIRS / W::ENCODING.scales_per_group;
    let at_once = D::STEP_PAIRS.min(pairs);
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = *products;
        macro_rules! add_pairs {
            ($($index:literal)*) => {
                $(
                    if $index < pairs {
                        if $index % at_once == 0 {
                            begin_all::<D, ROWS, VECTORS>(&mut sums, products);
                        }
                        let steps = match (W::ENCODING.bits, W::HALVES) {
                            (_, true) => [0, 1].map(|step| half * PAIRS + 2 * $index + step),
                            (8, false) => [2 * $index, 2 * $index + 1],
                            (_, false) => [$index, $index + PAIRS], // whose integers share bytes
                        };
                        add_pair::<W, D, ROWS, VECTORS>(group, steps, x, &mut sums);
                        if $index % at_once == at_once - 1 {
                            end_all::<D, ROWS, VECTORS>(&sums, products);
                        }
                    }
                )*
            };
        }
        // Not a loop: the places of bits must be constants.
        add_pairs!(0 1 2 3);
    }
}

/// Add the products of two steps to all sums.
///
/// # Safety
///
/// See `add_products`.
#[inline(always)]
unsafe fn add_pair<W: Weights, D: Dots, const ROWS: usize, const VECTORS: usize>(
    group: *const u8,
    [first, second]: [usize; 2],
    x: *const i8,
    sums: &mut [[__m256i; VECTORS]; ROWS],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut weights = [[D::prepare(_mm256_setzero_si256()); 2]; VECTORS];
        for (vector, weights) in weights.iter_mut().enumerate() {
            let group = group.add(vector * BYTES);
            *weights = [D::prepare(integers::<W>(group, first)), D::prepare(integers::<W>(group, second))];
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let x = x.add(row * GROUP).cast::<i32>();
            let x = [x.add(first).read_unaligned(), x.add(second).read_unaligned()];
            let x = [_mm256_set1_epi32(x[0]), _mm256_set1_epi32(x[1])];
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = D::add(*sum, weights, x);
            }
        }
    }
}

/// # Safety
///
/// See `Dots`.
#[inline(always)]
unsafe fn begin_all<D: Dots, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[__m256i; VECTORS]; ROWS],
    products: &[[__m256i; VECTORS]; ROWS],
) {
    for (sum, product) in sums.as_flattened_mut().iter_mut().zip(products.as_flattened()) {
        // SAFETY: as the caller promises.
        *sum = unsafe { D::begin(*product) };
    }
}

/// # Safety
///
/// See `Dots`.
#[inline(always)]
unsafe fn end_all<D: Dots, const ROWS: usize, const VECTORS: usize>(
    sums: &[[__m256i; VECTORS]; ROWS],
    products: &mut [[__m256i; VECTORS]; ROWS],
) {
    for (sum, product) in sums.as_flattened().iter().zip(products.as_flattened_mut()) {
        // SAFETY: as the caller promises.
        *product = unsafe { D::end(*sum, *product) };
    }
}

/// A step's integers of 8 columns, as unsigned bytes.
///
/// # Safety
///
/// The group is valid, from the first column on; this machine has AVX2.
#[inline(always)]
unsafe fn integers<W: Weights>(group: *const u8, step: usize) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        if W::ENCODING.bits == 8 {
            return line(group, step);
        }
        let pairs = line(group, step % PAIRS);
        let pairs = if step < PAIRS { pairs } else { _mm256_srli_epi16::<4>(pairs) };
        let nibbles = _mm256_and_si256(pairs, _mm256_set1_epi8(0xf));
        if let Some(numbers) = W::ENCODING.unsigned_codebook() {
            let numbers = _mm256_broadcastsi128_si256(_mm_loadu_si128(numbers.as_ptr().cast()));
            return _mm256_shuffle_epi8(numbers, nibbles);
        }
        let (pair, high_bits) = (step % PAIRS, W::ENCODING.bits - 4);
        if high_bits == 0 {
            return nibbles;
        }
        let place = pair * high_bits;
        let highs = line(group, PAIRS + place / 4);
        let highs = match (step < PAIRS, place % 4) {
            (true, 0) => highs,
            (true, 1) => _mm256_srli_epi16::<1>(highs),
            (true, 2) => _mm256_srli_epi16::<2>(highs),
            (true, _) => _mm256_srli_epi16::<3>(highs),
            (false, 0) => _mm256_slli_epi16::<4>(highs),
            (false, 1) => _mm256_slli_epi16::<3>(highs),
            (false, 2) => _mm256_slli_epi16::<2>(highs),
            (false, _) => _mm256_slli_epi16::<1>(highs),
        };
        let mask = _mm256_set1_epi8(if high_bits == 1 { 0x10 } else { 0x30 });
        _mm256_or_si256(nibbles, _mm256_and_si256(highs, mask))
    }
}

/// # Safety
///
/// See `integers`.
#[inline(always)]
unsafe fn line(group: *const u8, line: usize) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe { _mm256_loadu_si256(group.add(line * STEP_BYTES).cast()) }
}

/// A group's scales or minimums of 8 columns; `supers` are their factors, if the format has super-blocks.
///
/// # Safety
///
/// The group is valid; this machine has AVX2 and F16C.
#[inline(always)]
unsafe fn factor<W: Weights>(group: *const u8, supers: __m256, index: usize, column: usize) -> __m256 {
    const LEAST: i32 = 0x40_0000; // 2^-127, whose exponent in float32 would be 0
    // SAFETY: as the caller promises.
    unsafe {
        let factors = group.add(W::INTEGER_BYTES);
        let bytes = _mm_loadl_epi64(factors.add(index * PANEL + column).cast());
        match W::ENCODING.scale_type {
            ScaleType::Half => half_floats(factors, index * PANEL + column),
            ScaleType::Exponent => {
                let powers = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(bytes));
                let powers = _mm256_castsi256_ps(_mm256_max_epi32(powers, _mm256_set1_epi32(LEAST)));
                _mm256_mul_ps(powers, _mm256_set1_ps(0.5))
            }
            ScaleType::SuperBlock => _mm256_mul_ps(supers, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))),
            ScaleType::Single => _mm256_loadu_ps(factors.cast::<f32>().add(index * PANEL + column)),
        }
    }
}

/// # Safety
///
/// There are 8 float16 from the place `at` on; this machine has F16C.
#[inline(always)]
unsafe fn half_floats(from: *const u8, at: usize) -> __m256 {
    // SAFETY: as the caller promises.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(at * 2).cast())) }
}
