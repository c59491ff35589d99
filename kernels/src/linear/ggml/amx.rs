//! The micro-kernel in AMX, for expanded panels: products of 16 rows and 16 columns at once, for large numbers of rows.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
};
use std::mem::MaybeUninit;

use super::tile::{Tile, Weights};
use crate::amx_tiles::{Configuration, Tiles, add_dots, load, store, zero};
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, Products, SIDE, STEP_BYTES, STEP_FEATURES};

/// Below this many rows the vector kernels are faster.
pub(super) const MIN_ROWS: usize = 33;

/// Products that the tiles compute before vectors add them up: memory that a tile wrote is slow to read at first.
const PRODUCTS_AT_ONCE: usize = 12;

/// # Safety
///
/// See `IntegerFormat::multiply`; whole tiles of these rows can be read, and the panel is expanded.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    const WHOLE: Configuration = Configuration::new(GROUP, [SIDE; 2]);
    const HALVES: Configuration = Configuration::new(GROUP / 2, [SIDE; 2]);
    // SAFETY: as the caller promises.
    unsafe {
        let _tiles = Tiles::configure(if W::HALVES { &HALVES } else { &WHOLE });
        for part in tile.parts(SIDE) {
            for side in 0..2 {
                if part.rows > SIDE / 2 {
                    half_panel::<W, SIDE>(&part, side);
                } else {
                    half_panel::<W, { SIDE / 2 }>(&part, side);
                }
            }
        }
    }
}

/// # Safety
///
/// See `multiply`, with at most `ROWS` rows; the tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn half_panel<W: Weights, const ROWS: usize>(tile: &Tile, side: usize) {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let mut products = [const { MaybeUninit::<Products>::uninit() }; PRODUCTS_AT_ONCE];
    let num_scales = W::ENCODING.scales_per_group;
    for first in (0..tile.num_chunks).step_by(PRODUCTS_AT_ONCE / num_scales) {
        let groups = first..tile.num_chunks.min(first + PRODUCTS_AT_ONCE / num_scales);
        // SAFETY: as the caller promises.
        unsafe {
            for (group, products) in groups.clone().zip(products.chunks_exact_mut(num_scales)) {
                for (half, products) in products.iter_mut().enumerate() {
                    multiply_group::<W>(tile, side, group, half, products.as_mut_ptr());
                }
            }
            for (group, products) in groups.zip(products.chunks_exact(num_scales)) {
                let factors = tile.chunk_factors(group);
                let weights = tile.panel.add(group * W::GROUP_BYTES + W::INTEGER_BYTES).cast::<f32>();
                let factor = |index: usize| _mm512_loadu_ps(weights.add(index * PANEL + side * SIDE));
                for (half, products) in products.iter().enumerate() {
                    let scales: __m512 = factor(half);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let scale = _mm512_mul_ps(_mm512_set1_ps((*factors.add(row)).scale), scales);
                        let product = products.as_ptr().cast::<__m512i>().add(row).read();
                        let product = _mm512_add_epi32(product, _mm512_set1_epi32((*factors.add(row)).starts[half]));
                        *sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(product), *sum);
                    }
                }
                for half in 0..if W::HAS_MIN { num_scales } else { 0 } {
                    let mins = factor(num_scales + half);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_fmadd_ps(mins, _mm512_set1_ps((*factors.add(row)).scaled_sums[half]), *sum);
                    }
                }
            }
        }
    }
    for (row, sum) in sums.into_iter().take(tile.rows).enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store_avx512(row, side * SIDE, sum) };
    }
}

/// Inputs are signed, weights unsigned. Consecutive products use different tiles, so that the next is loaded while one
/// is multiplied.
///
/// # Safety
///
/// See `half_panel`; the group is valid, and `to` can be written.
#[inline]
unsafe fn multiply_group<W: Weights>(tile: &Tile, side: usize, group: usize, half: usize, to: *mut Products) {
    let feature = half * GROUP / 2;
    // SAFETY: as the caller promises.
    unsafe {
        let rows = tile.chunk(group, 0).add(feature);
        let steps = tile.panel.add(group * W::GROUP_BYTES + feature / STEP_FEATURES * STEP_BYTES);
        let columns = steps.add(side * STEP_BYTES / 2);
        if (group * W::ENCODING.scales_per_group + half).is_multiple_of(2) {
            zero!(0);
            load!(4, rows, GROUP);
            load!(6, columns, STEP_BYTES);
            add_dots!("tdpbsud", 0, 4, 6);
            store!(0, to, SIDE * 4);
        } else {
            zero!(1);
            load!(5, rows, GROUP);
            load!(7, columns, STEP_BYTES);
            add_dots!("tdpbsud", 1, 5, 7);
            store!(1, to, SIDE * 4);
        }
    }
}
