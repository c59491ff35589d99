//! The micro-kernel in plain Rust.

use super::tile::{STEP_BYTES, STEP_FEATURES, Tile, Weights};
use crate::linear::format::from_float16;
use crate::linear::output::PANEL;

/// # Safety
///
/// As for `Tile::multiply`.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    for row in 0..tile.rows {
        let mut sums = [0.0; PANEL];
        let mut weights = tile.weights;
        for group in 0..tile.num_groups {
            // SAFETY: as the caller promises.
            unsafe { weights = add_group::<W>(tile, row, group, weights, &mut sums) };
        }
        // SAFETY: as the caller promises.
        unsafe { tile.output.store(row, &sums) };
    }
}

/// # Safety
///
/// As for `Tile::multiply`; `weights` is the group's, and what comes back the next one's.
unsafe fn add_group<W: Weights>(
    tile: &Tile,
    row: usize,
    group: usize,
    mut weights: *const u8,
    sums: &mut [f32; PANEL],
) -> *const u8 {
    let first = group * tile.group_features;
    // SAFETY: as the caller promises.
    let factors = unsafe { tile.factors(row, group) };
    let mut products = [factors.start; PANEL];
    // SAFETY: as the caller promises.
    let step = |feature: usize| unsafe { tile.step(row, first + feature) }.to_ne_bytes().map(u8::cast_signed);
    if W::NIBBLES {
        let half = tile.group_features / 2;
        for feature in (0..half).step_by(STEP_FEATURES) {
            // SAFETY: as the caller promises.
            let cells = unsafe { weights.cast::<[u8; STEP_BYTES]>().read() };
            add_dots(&mut products, cells.map(|byte| byte & 0xf), step(feature));
            add_dots(&mut products, cells.map(|byte| byte >> 4), step(half + feature));
            // SAFETY: as the caller promises.
            weights = unsafe { weights.add(STEP_BYTES) };
        }
    } else {
        for feature in (0..tile.group_features).step_by(STEP_FEATURES) {
            // SAFETY: as the caller promises.
            let cells = unsafe { weights.cast::<[u8; STEP_BYTES]>().read() };
            add_dots(&mut products, cells, step(feature));
            // SAFETY: as the caller promises.
            weights = unsafe { weights.add(STEP_BYTES) };
        }
    }
    // SAFETY: as the caller promises.
    let (scales, weights) = unsafe {
        if W::ONE_GROUP { (weights.cast::<[f32; PANEL]>().read_unaligned(), weights) } else { half_floats(weights) }
    };
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
