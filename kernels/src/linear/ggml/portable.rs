//! The micro-kernel in plain Rust.

use super::tile::{Tile, Weights};
use crate::dtype::from_float16;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, STEP_BYTES, STEP_FEATURES};

/// # Safety
///
/// As for `IntegerFormat::multiply`.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        for row in tile.parts(1) {
            let mut sums = [0.0; PANEL];
            let mut weights = row.panel;
            for group in 0..row.num_chunks {
                weights = add_group::<W>(&row, group, weights, &mut sums);
            }
            row.output.store(0, &sums);
        }
    }
}

/// # Safety
///
/// As for `IntegerFormat::multiply`, with one row; `weights` is the group's, and what comes back the next one's.
unsafe fn add_group<W: Weights>(
    row: &Tile,
    group: usize,
    mut weights: *const u8,
    sums: &mut [f32; PANEL],
) -> *const u8 {
    // SAFETY: as the caller promises.
    let (factors, x) = unsafe { (row.chunk_factors(group).read(), row.chunk(group, 0).cast::<[i8; GROUP]>().read()) };
    let mut products = [factors.start; PANEL];
    let steps = x.as_chunks::<STEP_FEATURES>().0;
    // SAFETY: as the caller promises, for as many steps as there are.
    let mut next = || unsafe {
        let cells = weights.cast::<[u8; STEP_BYTES]>().read();
        weights = weights.add(STEP_BYTES);
        cells
    };
    if W::NIBBLES {
        let (lows, highs) = steps.split_at(steps.len() / 2);
        for (low, high) in lows.iter().zip(highs) {
            let cells = next();
            add_dots(&mut products, cells.map(|byte| byte & 0xf), *low);
            add_dots(&mut products, cells.map(|byte| byte >> 4), *high);
        }
    } else {
        for step in steps {
            add_dots(&mut products, next(), *step);
        }
    }
    // SAFETY: as the caller promises.
    let (scales, weights) = unsafe { half_floats(weights) };
    for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
        *sum = (factors.scale * scale).mul_add(product as f32, *sum);
    }
    if !W::HAS_MIN {
        return weights;
    }
    // SAFETY: as the caller promises.
    let (mins, weights) = unsafe { half_floats(weights) };
    for (sum, min) in sums.iter_mut().zip(mins) {
        *sum = min.mul_add(factors.scaled_sum, *sum);
    }
    weights
}

fn add_dots(products: &mut [i32; PANEL], cells: [u8; STEP_BYTES], x: [i8; STEP_FEATURES]) {
    for (product, cell) in products.iter_mut().zip(cells.as_chunks::<STEP_FEATURES>().0) {
        let dot: i32 = cell.iter().zip(x).map(|(&weight, x)| i32::from(weight) * i32::from(x)).sum();
        *product = product.wrapping_add(dot);
    }
}

/// And what lies behind them.
///
/// # Safety
///
/// A panel's float16 are there.
unsafe fn half_floats(weights: *const u8) -> ([f32; PANEL], *const u8) {
    // SAFETY: as the caller promises.
    unsafe { (weights.cast::<[u16; PANEL]>().read_unaligned().map(from_float16), weights.add(PANEL * 2)) }
}
