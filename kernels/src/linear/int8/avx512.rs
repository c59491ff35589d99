//! The micro-kernel in AVX-512 with VNNI: all products of a few rows stay in registers.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
};

use super::nibbles::{self, GROUP_BYTES, VectorFactors};
use super::tile::{Bytes, CHUNK, InputFactors, PLANES, Tile, Weights};
use crate::isa::Isa;
use crate::linear::format::GROUP;
use crate::linear::output::{SIDE, STEP_BYTES, STEP_FEATURES};
use crate::linear::{for_rows, prefetch_distance};

/// Rows at once: four products each, among 32 registers. For more rows, a 4-bit panel is expanded to bytes beforehand.
const MAX_ROWS: usize = 6;
/// Steps in a group.
const STEPS: usize = GROUP / STEP_FEATURES;

/// # Safety
///
/// See `IntegerFormat::multiply`.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        if W::NIBBLES && tile.rows > MAX_ROWS {
            nibbles::in_bytes::<W>(tile, Isa::Avx512, |tile| multiply_parts::<Bytes>(tile));
        } else {
            multiply_parts::<W>(tile);
        }
    }
}

/// # Safety
///
/// See `IntegerFormat::multiply`.
unsafe fn multiply_parts<W: Weights>(tile: &Tile) {
    let kernels: [unsafe fn(&Tile); MAX_ROWS] = for_rows!(rows<W>: 1 2 3 4 5 6);
    // SAFETY: as the caller promises.
    unsafe { tile.run_parts(&kernels) };
}

/// The products of a row: for each plane, those of each half of the panel.
type Products = [[__m512i; 2]; PLANES];

/// # Safety
///
/// See `IntegerFormat::multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn rows<W: Weights, const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        let factors: [InputFactors; ROWS] = std::array::from_fn(|row| tile.factors.add(row).read());
        let mut products = factors.map(|factors| factors.starts.map(|start| [_mm512_set1_epi32(start); 2]));
        let distance = prefetch_distance(ROWS);
        let mut weights = tile.panel.integers;
        for group in 0..tile.num_chunks * (CHUNK / GROUP) {
            let x = tile.chunk(group * GROUP / CHUNK, 0).add(group * GROUP % CHUNK);
            let x = |row: usize, plane: usize, step: usize| {
                x.add((plane * SIDE + row) * CHUNK).cast::<i32>().add(step).read_unaligned()
            };
            if W::NIBBLES {
                let factors = VectorFactors::load(weights, distance);
                for step in 0..STEPS / 2 {
                    let [first, second] = vectors(weights.add(step * STEP_BYTES), distance);
                    let ([low, high], [next_low, next_high]) = (factors.expand(0, first), factors.expand(1, second));
                    add_dots(&mut products, [low, next_low], |row, plane| x(row, plane, step));
                    add_dots(&mut products, [high, next_high], |row, plane| x(row, plane, step + STEPS / 2));
                }
                weights = weights.add(GROUP_BYTES);
            } else {
                for step in 0..STEPS {
                    let bytes = vectors(weights.add(step * STEP_BYTES), distance);
                    add_dots(&mut products, bytes, |row, plane| x(row, plane, step));
                }
                weights = weights.add(STEPS * STEP_BYTES);
            }
        }
        for (row, (products, factors)) in products.into_iter().zip(factors).enumerate() {
            store(tile, row, factors.scale, products);
        }
    }
}

/// Scale the products of a row, and write them.
///
/// # Safety
///
/// See `IntegerFormat::multiply`, and the tile has the row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn store(tile: &Tile, row: usize, scale: f32, [high, low]: Products) {
    for half in 0..2 {
        // SAFETY: as the caller promises: a panel has its scales.
        let scales: __m512 = unsafe { _mm512_loadu_ps(tile.panel.scales.cast::<f32>().add(half * SIDE)) };
        let [high, low] = [high, low].map(|products| _mm512_cvtepi32_ps(products[half]));
        let sum = _mm512_fmadd_ps(_mm512_set1_ps(128.0), high, low);
        let sum = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(scale), scales), sum);
        // SAFETY: as the caller promises.
        unsafe { tile.output.store_avx512(row, half * SIDE, sum) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dots(products: &mut [Products], weights: [__m512i; 2], x: impl Fn(usize, usize) -> i32) {
    for (row, products) in products.iter_mut().enumerate() {
        for (plane, products) in products.iter_mut().enumerate() {
            let x = _mm512_set1_epi32(x(row, plane));
            products[0] = _mm512_dpbusd_epi32(products[0], weights[0], x);
            products[1] = _mm512_dpbusd_epi32(products[1], weights[1], x);
        }
    }
}

/// # Safety
///
/// A step's bytes are valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn vectors(step: *const u8, distance: usize) -> [__m512i; 2] {
    // SAFETY: as the caller promises; asking for memory that is not there does nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(step.wrapping_add(distance).cast());
        _mm_prefetch::<_MM_HINT_T0>(step.wrapping_add(distance + 64).cast());
        [_mm512_loadu_si512(step.cast()), _mm512_loadu_si512(step.add(64).cast())]
    }
}
