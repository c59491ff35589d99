//! The micro-kernel in AMX: bfloat16, products of up to 16 rows and 16 columns at once.
//!
//! Unlike the vector kernels, a tile sums the products of 32 features on its own before adding them to the sum. So all
//! rows go through tiles, even one alone: the choice of kernel must depend on the matrix, not on the rows.

use std::arch::asm;
use std::arch::x86_64::_mm512_load_ps;

use super::step_bytes;
use super::tile::Tile;
use crate::amx_tiles::{Configuration, Tiles, add_dots, load, store, zero};
use crate::dtype::DType;
use crate::linear::output::SIDE;

/// Bytes of a panel's step.
const STEP_BYTES: usize = step_bytes(DType::Bfloat16);
/// Features of a tile.
const DEPTH: usize = 32;
/// Steps of a panel in a tile.
const STEPS: usize = DEPTH / 2;

/// Whether tiles can take rows of `in_features`: only whole tiles, as there is no padding.
pub(super) fn takes(in_features: usize) -> bool {
    in_features.is_multiple_of(DEPTH)
}

/// # Safety
///
/// See `tile::Multiply`, for `rows` rows; tiles take their features.
pub(super) unsafe fn multiply(tile: &Tile, rows: usize) {
    for start in (0..rows).step_by(2 * SIDE) {
        let rows = (rows - start).min(2 * SIDE);
        // SAFETY: as the caller promises.
        unsafe {
            let x = tile.x.add(start * tile.x_stride);
            part(&Tile { x, output: tile.output.rows_from(start), ..*tile }, rows);
        }
    }
}

/// Sums of 16 rows and columns.
#[repr(C, align(64))]
struct Sums([[f32; SIDE]; SIDE]);

/// # Safety
///
/// See `multiply`, with at most twice `SIDE` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn part(tile: &Tile, rows: usize) {
    let mut sums = [const { Sums([[0.0; SIDE]; SIDE]) }; 4];
    let second = rows.saturating_sub(SIDE);
    // SAFETY: as the caller promises: the tiles have the rows' sizes.
    unsafe {
        let _tiles = Tiles::configure(&Configuration::new(DEPTH * 2, [rows - second, second.max(1)]));
        zero!(0);
        zero!(1);
        zero!(2);
        zero!(3);
        for depth in 0..tile.in_features / DEPTH {
            let x = tile.x.add(depth * DEPTH * 2);
            let weights = tile.weights.add(depth * STEPS * STEP_BYTES);
            load!(4, x, tile.x_stride);
            load!(6, weights, STEP_BYTES);
            add_dots!("tdpbf16ps", 0, 4, 6);
            load!(7, weights.add(STEP_BYTES / 2), STEP_BYTES);
            add_dots!("tdpbf16ps", 1, 4, 7);
            if second > 0 {
                load!(5, x.add(SIDE * tile.x_stride), tile.x_stride);
                add_dots!("tdpbf16ps", 2, 5, 6);
                add_dots!("tdpbf16ps", 3, 5, 7);
            }
        }
        store!(0, &raw mut sums[0], SIDE * 4);
        store!(1, &raw mut sums[1], SIDE * 4);
        store!(2, &raw mut sums[2], SIDE * 4);
        store!(3, &raw mut sums[3], SIDE * 4);
        for row in 0..rows {
            for half in 0..2 {
                let sums = &sums[row / SIDE * 2 + half].0[row % SIDE];
                tile.output.store_avx512(row, half * SIDE, _mm512_load_ps(sums.as_ptr()));
            }
        }
    }
}
