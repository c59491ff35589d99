//! The micro-kernel in AVX2, for expanded panels: products of 16 bits, whose sums of two cannot overflow.

use std::arch::x86_64::{
    __m256, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::tile::{Tile, Weights};
use crate::linear::dots;
use crate::linear::for_rows;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is expanded.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // Two products and two sums per row, for half of the panel at a time, among 16 registers.
    let kernels: [unsafe fn(&Tile); 2] = for_rows!(rows<W>: 1 2);
    // SAFETY: as the caller promises.
    unsafe { tile.parts(kernels.len()).for_each(|part| kernels[part.rows - 1](&part)) };
}

/// # Safety
///
/// See `IntegerFormat::multiply`; the panel is expanded.
#[target_feature(enable = "avx2,fma")]
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
/// See `IntegerFormat::multiply`; the panel is expanded.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn half_panel<W: Weights, const ROWS: usize>(tile: &Tile, column: usize) -> [[__m256; 2]; ROWS] {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    let num_scales = W::ENCODING.scales_per_group;
    // SAFETY: as the caller promises.
    unsafe {
        for group in 0..tile.num_chunks {
            let weights = tile.panel.add(group * W::GROUP_BYTES);
            let factors = tile.chunk_factors(group);
            let x = tile.chunk(group, 0);
            let steps = GROUP / STEP_FEATURES / num_scales;
            for half in 0..num_scales {
                let mut products: [_; ROWS] =
                    std::array::from_fn(|row| [_mm256_set1_epi32((*factors.add(row)).starts[half]); 2]);
                for step in half * steps..(half + 1) * steps {
                    let bytes = weights.add(step * STEP_BYTES + column * STEP_FEATURES);
                    let bytes = [_mm256_loadu_si256(bytes.cast()), _mm256_loadu_si256(bytes.add(32).cast())];
                    dots::avx2(&mut products, bytes, |row| x.add(row * GROUP).cast::<i32>().add(step).read_unaligned());
                }
                let scales = factor::<W>(weights, half, column);
                for (row, (sums, products)) in sums.iter_mut().zip(products).enumerate() {
                    let scale = _mm256_set1_ps((*factors.add(row)).scale);
                    for side in 0..2 {
                        let scale = _mm256_mul_ps(scale, scales[side]);
                        sums[side] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(products[side]), sums[side]);
                    }
                }
            }
            for half in 0..if W::HAS_MIN { num_scales } else { 0 } {
                let mins = factor::<W>(weights, num_scales + half, column);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let scaled_sum = _mm256_set1_ps((*factors.add(row)).scaled_sums[half]);
                    for side in 0..2 {
                        sums[side] = _mm256_fmadd_ps(mins[side], scaled_sum, sums[side]);
                    }
                }
            }
        }
    }
    sums
}

/// Scales or minimums of 16 columns of a group.
///
/// # Safety
///
/// The group is valid.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn factor<W: Weights>(group: *const u8, index: usize, column: usize) -> [__m256; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let factors = group.add(W::INTEGER_BYTES).cast::<f32>().add(index * PANEL + column);
        [_mm256_loadu_ps(factors), _mm256_loadu_ps(factors.add(8))]
    }
}
