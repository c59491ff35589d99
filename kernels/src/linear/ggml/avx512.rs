//! The micro-kernels in AVX-512 with VNNI: all products and sums of a few rows stay in registers. Packed panels are
//! unpacked along the way.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_epi32,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_epi8,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_ternarylogic_epi32,
};

use super::panel::PAIRS;
use super::tile::{Tile, Weights};
use crate::linear::format::{GROUP, SUPER_GROUPS, ScaleType};
use crate::linear::output::{PANEL, STEP_BYTES};
use crate::linear::{PREFETCH, for_rows, prefetch_distance};

/// With more rows it pays to expand the panel first.
pub(super) const MAX_PACKED_ROWS: usize = 64;

/// Steps of a group.
const STEPS: usize = 2 * PAIRS;

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is as `W` says.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // Two products and two sums per row, among 32 registers. If integers are unpacked for each part, fewer parts
    // outweigh sums that wait in memory until a group ends.
    let most = if W::ENCODING.bits < 8 { 8 } else { 6 };
    let kernels: [unsafe fn(&Tile); 8] = for_rows!(rows<W>: 1 2 3 4 5 6 7 8);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels[..most]) };
}

/// # Safety
///
/// This machine has the instructions; the panel is as `W` says, and `out` has room for it once it is expanded.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn expand<W: Weights>(panel: &[u8], out: &mut [u8]) {
    let mut supers = [[_mm512_setzero_ps(); 2]; 2];
    let mut weights = panel.as_ptr();
    for (group, out) in out.chunks_exact_mut(W::Expanded::GROUP_BYTES).enumerate() {
        let (integers, factors) = out.split_at_mut(W::Expanded::INTEGER_BYTES);
        // SAFETY: as the caller promises: the panel has this group, and `out` its steps and factors.
        unsafe {
            if W::IN_SUPER_BLOCKS && group.is_multiple_of(SUPER_GROUPS) {
                supers = next_supers::<W>(&mut weights, PREFETCH);
            }
            for half in 0..W::ENCODING.scales_per_group {
                unpack::<W>(weights, half, PREFETCH, |step, bytes| {
                    let to = integers.as_mut_ptr().add(step * STEP_BYTES);
                    _mm512_storeu_si512(to.cast(), bytes[0]);
                    _mm512_storeu_si512(to.add(64).cast(), bytes[1]);
                });
            }
            for index in 0..W::ENCODING.factors_per_group() {
                let to = factors.as_mut_ptr().cast::<f32>().add(index * PANEL);
                let [first, second] = factor::<W>(weights, index, &supers, PREFETCH);
                _mm512_storeu_ps(to, first);
                _mm512_storeu_ps(to.add(16), second);
            }
            weights = weights.add(W::GROUP_BYTES);
        }
    }
}

/// # Safety
///
/// See `multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows<W: Weights, const ROWS: usize>(tile: &Tile) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut supers = [[_mm512_setzero_ps(); 2]; 2];
    let distance = prefetch_distance(ROWS);
    let mut weights = tile.panel;
    // SAFETY: as the caller promises.
    unsafe {
        for group in 0..tile.num_chunks {
            if W::IN_SUPER_BLOCKS && group.is_multiple_of(SUPER_GROUPS) {
                supers = next_supers::<W>(&mut weights, distance);
            }
            let factors = tile.chunk_factors(group);
            let x = tile.chunk(group, 0);
            for half in 0..W::ENCODING.scales_per_group {
                let mut products: [_; ROWS] =
                    std::array::from_fn(|row| [_mm512_set1_epi32((*factors.add(row)).starts[half]); 2]);
                unpack::<W>(weights, half, distance, |step, bytes| {
                    for (row, products) in products.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(x.add(row * GROUP).cast::<i32>().add(step).read_unaligned());
                        products[0] = _mm512_dpbusd_epi32(products[0], bytes[0], x);
                        products[1] = _mm512_dpbusd_epi32(products[1], bytes[1], x);
                    }
                });
                let scales = factor::<W>(weights, half, &supers, distance);
                for (row, (sums, products)) in sums.iter_mut().zip(products).enumerate() {
                    let scale = _mm512_set1_ps((*factors.add(row)).scale);
                    for side in 0..2 {
                        let scale = _mm512_mul_ps(scale, scales[side]);
                        sums[side] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(products[side]), sums[side]);
                    }
                }
            }
            if W::HAS_MIN {
                for half in 0..W::ENCODING.scales_per_group {
                    let mins = factor::<W>(weights, W::ENCODING.scales_per_group + half, &supers, distance);
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let scaled_sum = _mm512_set1_ps((*factors.add(row)).scaled_sums[half]);
                        sums[0] = _mm512_fmadd_ps(mins[0], scaled_sum, sums[0]);
                        sums[1] = _mm512_fmadd_ps(mins[1], scaled_sum, sums[1]);
                    }
                }
            }
            weights = weights.add(W::GROUP_BYTES);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            tile.output.store_avx512(row, 0, sums[0]);
            tile.output.store_avx512(row, 16, sums[1]);
        }
    }
}

/// Call `each` with every step of a group, or of this half of it if it has halves, and with its integers as unsigned
/// bytes, of both halves of the panel.
///
/// # Safety
///
/// The group is valid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack<W: Weights>(
    group: *const u8,
    half: usize,
    distance: usize,
    mut each: impl FnMut(usize, [__m512i; 2]),
) {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    let line = |line: usize| unsafe {
        let at = group.add(line * STEP_BYTES);
        if half == 0 || W::ENCODING.bits == 8 {
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(distance).cast());
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(distance + 64).cast());
        }
        [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())]
    };
    let (first, second) = (!W::HALVES || half == 0, !W::HALVES || half == 1);
    if W::ENCODING.bits == 8 {
        for step in if first { 0 } else { PAIRS }..if second { STEPS } else { PAIRS } {
            each(step, line(step));
        }
        return;
    }
    let high_bits = W::ENCODING.bits - 4;
    let mut highs = [_mm512_set1_epi8(0); 2];
    for pair in 0..PAIRS {
        let nibbles = line(pair);
        if high_bits > 0 && pair * high_bits % 4 == 0 {
            highs = line(PAIRS + pair * high_bits / 4);
        }
        if first {
            each(pair, integers::<W>(nibbles, highs));
        }
        if second {
            let nibbles = nibbles.map(|nibbles| _mm512_srli_epi16::<4>(nibbles));
            each(pair + PAIRS, integers::<W>(nibbles, highs.map(|highs| _mm512_slli_epi16::<4>(highs))));
        }
        highs = match high_bits {
            0 => highs,
            1 => highs.map(|highs| _mm512_srli_epi16::<1>(highs)),
            _ => highs.map(|highs| _mm512_srli_epi16::<2>(highs)),
        };
    }
}

/// The integers from the low 4 bits of each byte, and the bits above them in `highs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn integers<W: Weights>(nibbles: [__m512i; 2], highs: [__m512i; 2]) -> [__m512i; 2] {
    const SECOND_WHERE_FIRST_ELSE_THIRD: i32 = 0xca;
    let low = _mm512_set1_epi8(0xf);
    if W::ENCODING.bits > 4 {
        let mask = _mm512_set1_epi8(if W::ENCODING.bits == 5 { 0x10 } else { 0x30 });
        return [0, 1].map(|side| {
            let high = _mm512_and_si512(highs[side], mask);
            _mm512_ternarylogic_epi32::<SECOND_WHERE_FIRST_ELSE_THIRD>(low, nibbles[side], high)
        });
    }
    let nibbles = nibbles.map(|nibbles| _mm512_and_si512(nibbles, low));
    let Some(numbers) = W::ENCODING.unsigned_codebook() else { return nibbles };
    // SAFETY: there are 16 of them.
    let numbers = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(numbers.as_ptr().cast()) });
    nibbles.map(|nibbles| _mm512_shuffle_epi8(numbers, nibbles))
}

/// A group's scales or minimums, of both halves of the panel.
///
/// # Safety
///
/// The group is valid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn factor<W: Weights>(
    group: *const u8,
    index: usize,
    supers: &[[__m512; 2]; 2],
    distance: usize,
) -> [__m512; 2] {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        let factors = group.add(W::INTEGER_BYTES + index * PANEL * W::ENCODING.scale_bytes());
        match W::ENCODING.scale_type {
            ScaleType::Half => half_floats(factors, distance),
            ScaleType::Exponent => {
                _mm_prefetch::<_MM_HINT_T0>(factors.wrapping_add(distance).cast());
                [0, 16].map(|at| halves_of_exponents(_mm_loadu_si128(factors.add(at).cast())))
            }
            ScaleType::SuperBlock => {
                if index.is_multiple_of(2) {
                    _mm_prefetch::<_MM_HINT_T0>(factors.wrapping_add(distance).cast());
                }
                let byte = |side: usize| _mm512_cvtepi8_epi32(_mm_loadu_si128(factors.add(side * 16).cast()));
                let supers = supers[index / W::ENCODING.scales_per_group];
                [0, 1].map(|side| _mm512_mul_ps(supers[side], _mm512_cvtepi32_ps(byte(side))))
            }
            ScaleType::Single => [_mm512_loadu_ps(factors.cast()), _mm512_loadu_ps(factors.add(64).cast())],
        }
    }
}

/// `half_of_exponent` of 16 bytes, none of which is 255.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_of_exponents(bytes: __m128i) -> __m512 {
    const LEAST: i32 = 0x40_0000; // 2^-127, whose exponent in float32 would be 0
    let powers = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes));
    let powers = _mm512_castsi512_ps(_mm512_max_epi32(powers, _mm512_set1_epi32(LEAST)));
    _mm512_mul_ps(powers, _mm512_set1_ps(0.5))
}

/// The factors of the scales and the minimums of the next groups.
///
/// # Safety
///
/// A super-block is valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn next_supers<W: Weights>(weights: &mut *const u8, distance: usize) -> [[__m512; 2]; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let here = *weights;
        *weights = here.add(W::SUPER_BYTES);
        let scales = half_floats(here, distance);
        [scales, if W::HAS_MIN { half_floats(here.add(PANEL * 2), distance) } else { scales }]
    }
}

/// # Safety
///
/// A panel's float16 are valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn half_floats(from: *const u8, distance: usize) -> [__m512; 2] {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(distance).cast());
        [0, 32].map(|at| _mm512_cvtph_ps(_mm256_loadu_si256(from.add(at).cast())))
    }
}
