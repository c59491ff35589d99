//! The micro-kernel in AMX: products of 16 rows, in both planes, and 32 columns at once.

use std::arch::asm;
use std::arch::x86_64::{_mm512_add_epi32, _mm512_load_si512, _mm512_set1_epi32};

use super::tile::{Bytes, CHUNK, PLANES, Tile, Weights};
use super::{avx512, nibbles};
use crate::amx_tiles::{Configuration, Tiles, add_dots, load, store, zero};
use crate::isa::Isa;
use crate::linear::output::{PANEL, Products, SIDE, STEP_BYTES};

/// Below this many rows the vector kernels are faster.
pub(super) const MIN_ROWS: usize = 4;
/// Above this many rows a 4-bit panel is expanded to bytes once, before the product. Otherwise it is expanded for each
/// side, a chunk at a time: vectors and tiles work in parallel then, and a chunk stays in the L1 cache.
const MAX_ROWS_BY_CHUNKS: usize = 2 * SIDE;

/// # Safety
///
/// See `IntegerFormat::multiply`; whole tiles of these rows can be read.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        if W::NIBBLES && tile.rows > MAX_ROWS_BY_CHUNKS {
            nibbles::in_bytes::<W>(tile, Isa::Amx, |tile| multiply_sides::<Bytes>(tile));
        } else {
            multiply_sides::<W>(tile);
        }
    }
}

/// # Safety
///
/// See `multiply`.
unsafe fn multiply_sides<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        // Tiles with fewer rows are multiplied faster.
        let _tiles = Tiles::configure(&Configuration::new(CHUNK, [tile.rows.min(SIDE); 2]));
        tile.parts(SIDE).for_each(|side| multiply_side::<W>(&side));
    }
}

/// A chunk of a panel.
#[repr(C, align(64))]
struct Chunk([u8; CHUNK * PANEL]);

/// # Safety
///
/// See `multiply`, with at most `SIDE` rows; the tiles are configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn multiply_side<W: Weights>(side: &Tile) {
    let mut bytes = Chunk([0; CHUNK * PANEL]);
    let mut products = [[const { Products([[0; SIDE]; SIDE]) }; 2]; PLANES];
    // SAFETY: as the caller promises.
    unsafe {
        zero!(0);
        zero!(1);
        zero!(2);
        zero!(3);
        for chunk in 0..side.num_chunks {
            let columns = if W::NIBBLES {
                let panel = side.panel.integers.add(nibbles::panel_bytes(chunk));
                nibbles::expand_avx512(std::slice::from_raw_parts(panel, nibbles::panel_bytes(1)), &mut bytes.0);
                bytes.0.as_ptr()
            } else {
                side.panel.integers.add(chunk * CHUNK * PANEL)
            };
            load!(4, side.chunk(chunk, 0), CHUNK);
            load!(6, columns, STEP_BYTES);
            add_dots!("tdpbsud", 0, 4, 6);
            load!(7, columns.add(STEP_BYTES / 2), STEP_BYTES);
            add_dots!("tdpbsud", 1, 4, 7);
            load!(5, side.chunk(chunk, 1), CHUNK);
            add_dots!("tdpbsud", 2, 5, 6);
            add_dots!("tdpbsud", 3, 5, 7);
        }
        store!(0, &raw mut products[0][0], SIDE * 4);
        store!(1, &raw mut products[0][1], SIDE * 4);
        store!(2, &raw mut products[1][0], SIDE * 4);
        store!(3, &raw mut products[1][1], SIDE * 4);
        for row in 0..side.rows {
            let factors = side.factors.add(row).read();
            let products = std::array::from_fn(|plane| {
                let start = _mm512_set1_epi32(factors.starts[plane]);
                let half = |half: usize| _mm512_load_si512(products[plane][half].0[row].as_ptr().cast());
                [_mm512_add_epi32(half(0), start), _mm512_add_epi32(half(1), start)]
            });
            avx512::store(side, row, factors.scale, products);
        }
    }
}
