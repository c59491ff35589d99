//! The micro-kernels in plain Rust.

use super::tile::{Multiply, Tile};
use crate::dtype::from_float16;
use crate::linear::for_rows;
use crate::linear::output::PANEL;

pub(super) const FLOAT32: [Multiply; 4] = for_rows!(float32: 1 2 3 4);
pub(super) const BFLOAT16: [Multiply; 4] = for_rows!(bfloat16: 1 2 3 4);
pub(super) const FLOAT16: [Multiply; 4] = for_rows!(float16: 1 2 3 4);

/// # Safety
///
/// See `Multiply`.
unsafe fn float32<const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { multiply::<f32, ROWS>(tile, |number| number) };
}

/// # Safety
///
/// See `Multiply`.
unsafe fn float16<const ROWS: usize>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe { multiply::<u16, ROWS>(tile, from_float16) };
}

/// # Safety
///
/// See `Multiply`; rows and steps are made of T, one for each feature.
unsafe fn multiply<T: Copy, const ROWS: usize>(tile: &Tile, number: impl Fn(T) -> f32) {
    let mut sums = [[0.0; PANEL]; ROWS];
    // SAFETY: as the caller promises.
    unsafe {
        for feature in 0..tile.in_features {
            let weights = tile.weights.cast::<[T; PANEL]>().add(feature).read_unaligned().map(&number);
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = number(tile.x.add(row * tile.x_stride).cast::<T>().add(feature).read_unaligned());
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            tile.output.store(row, sums);
        }
    }
}

/// # Safety
///
/// See `Multiply`.
unsafe fn bfloat16<const ROWS: usize>(tile: &Tile) {
    let mut sums = [[0.0; PANEL]; ROWS];
    let mut step = |step: usize, pair: &dyn Fn(usize) -> u32| {
        // SAFETY: as the caller promises: this is called for the panel's steps.
        let weights = unsafe { tile.weights.cast::<[u32; PANEL]>().add(step).read_unaligned() };
        for (row, sums) in sums.iter_mut().enumerate() {
            let [low, high] = halves(pair(row));
            for (sum, weights) in sums.iter_mut().zip(weights.map(halves)) {
                *sum += low * weights[0];
                *sum += high * weights[1];
            }
        }
    };
    for pair in 0..tile.in_features / 2 {
        // SAFETY: as the caller promises: there are so many whole pairs in every row.
        step(pair, &|row| unsafe { tile.x.add(row * tile.x_stride).cast::<u32>().add(pair).read_unaligned() });
    }
    if !tile.in_features.is_multiple_of(2) {
        // SAFETY: as the caller promises, and an odd number is not 0.
        step(tile.in_features / 2, &|row| unsafe { tile.last_bfloat16(row) });
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, sums) };
    }
}

fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}
