//! The micro-kernels in AMX: products of 16 rows and 16 columns at once, for rows enough to be worth it.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_srli_epi16, _mm512_store_si512, _mm512_sub_epi8, _mm512_xor_si512,
};
use std::cell::RefCell;
use std::mem::MaybeUninit;

use super::tile::{Tile, Weights};
use crate::amx_tiles::{Configuration, Tiles, add_dots, load, store, zero};
use crate::linear::AHEAD;
use crate::linear::format::GROUP;
use crate::linear::output::{PANEL, Products, SIDE, STEP_BYTES};
use crate::memory::scratch::Scratch;

/// Bytes of a group's integers, of 8 bits each, in half of a panel.
const HALF_GROUP_BYTES: usize = GROUP * SIDE;

/// Below so many rows the vectors are faster.
const LEAST_ROWS: usize = 33;

/// # Safety
///
/// As for `IntegerFormat::multiply`; so many whole tiles of rows can be read.
pub(super) unsafe fn multiply<W: Weights>(tile: &Tile) {
    // SAFETY: as the caller promises.
    unsafe {
        if tile.rows < LEAST_ROWS {
            super::avx512::multiply::<W>(tile);
        } else {
            by_groups::<W>(tile);
        }
    }
}

thread_local! {
    /// The integers of half of a panel, of 8 bits each and with their signs.
    static SIGNED: RefCell<Scratch> = RefCell::default();
}

/// # Safety
///
/// As for `multiply`.
unsafe fn by_groups<W: Weights>(tile: &Tile) {
    const CONFIGURATION: Configuration = Configuration::new(GROUP, [SIDE; 2]);
    SIGNED.with_borrow_mut(|signed| {
        let signed = signed.bytes(tile.num_chunks * HALF_GROUP_BYTES * 2);
        // SAFETY: as the caller promises.
        unsafe {
            sign::<W>(tile, signed);
            let _tiles = Tiles::configure(&CONFIGURATION);
            for part in tile.parts(SIDE) {
                for half in 0..2 {
                    if part.rows > SIDE / 2 {
                        half_panel::<W, SIDE>(&part, signed, half);
                    } else {
                        half_panel::<W, { SIDE / 2 }>(&part, signed, half);
                    }
                }
            }
        }
    });
}

const fn group_bytes<W: Weights>() -> usize {
    integer_bytes::<W>() + PANEL * if W::HAS_MIN { 4 } else { 2 }
}

const fn integer_bytes<W: Weights>() -> usize {
    GROUP * PANEL / if W::NIBBLES { 2 } else { 1 }
}

/// Write to `signed` each group's integers: those of the first half of the columns, then those of the second.
///
/// # Safety
///
/// As for `multiply`; `signed` has room, and begins at a cache line.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn sign<W: Weights>(tile: &Tile, signed: &mut [u8]) {
    let (low_bits, eight, top_bit) = (_mm512_set1_epi8(0xf), _mm512_set1_epi8(8), _mm512_set1_epi8(-128));
    let nibbles = |bytes: __m512i| {
        let nibbles = _mm512_and_si512(bytes, low_bits);
        if W::HAS_MIN { nibbles } else { _mm512_sub_epi8(nibbles, eight) }
    };
    let mut weights = tile.panel;
    for group in signed.chunks_exact_mut(2 * HALF_GROUP_BYTES).take(tile.num_chunks) {
        for line in (0..group_bytes::<W>()).step_by(64) {
            _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(AHEAD + line).cast());
        }
        for half in 0..2 {
            // SAFETY: as the caller promises: a step of half of a panel is a vector.
            let vector = |step: usize| unsafe {
                _mm512_loadu_si512(weights.add(step * STEP_BYTES + half * STEP_BYTES / 2).cast())
            };
            let out = group[half * HALF_GROUP_BYTES..].as_mut_ptr();
            for step in 0..GROUP / 4 {
                let integers = if !W::NIBBLES {
                    _mm512_xor_si512(vector(step), top_bit)
                } else if step < GROUP / 8 {
                    nibbles(vector(step))
                } else {
                    nibbles(_mm512_srli_epi16::<4>(vector(step - GROUP / 8)))
                };
                // SAFETY: half a group has room for all of its steps.
                unsafe { _mm512_store_si512(out.add(step * STEP_BYTES / 2).cast(), integers) };
            }
        }
        // SAFETY: as the caller promises.
        weights = unsafe { weights.add(group_bytes::<W>()) };
    }
}

/// The tiles multiply so many groups before vectors add these up: what a tile wrote is slow to read soon after.
const GROUPS_AT_ONCE: usize = 12;

/// # Safety
///
/// As for `multiply`, with at most `ROWS` rows; the tiles are configured, and `signed` is written.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn half_panel<W: Weights, const ROWS: usize>(tile: &Tile, signed: &[u8], half: usize) {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let mut products = [const { MaybeUninit::<Products>::uninit() }; GROUPS_AT_ONCE];
    for first in (0..tile.num_chunks).step_by(GROUPS_AT_ONCE) {
        let groups = first..tile.num_chunks.min(first + GROUPS_AT_ONCE);
        // SAFETY: as the caller promises.
        unsafe {
            for (group, products) in groups.clone().zip(&mut products) {
                multiply_group(tile, signed, half, group, products.as_mut_ptr());
            }
            for (group, products) in groups.zip(&products) {
                let scales = tile.panel.add(group * group_bytes::<W>() + integer_bytes::<W>() + half * SIDE * 2);
                let mins = scales.add(PANEL * 2);
                let (scales, factors) = (half_floats(scales), tile.chunk_factors(group));
                for (row, sum) in sums.iter_mut().enumerate() {
                    let scale = _mm512_mul_ps(_mm512_set1_ps((*factors.add(row)).scale), scales);
                    let product = products.as_ptr().cast::<__m512i>().add(row).read();
                    *sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(product), *sum);
                }
                if W::HAS_MIN {
                    let mins = half_floats(mins);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_fmadd_ps(mins, _mm512_set1_ps((*factors.add(row)).scaled_sum), *sum);
                    }
                }
            }
        }
    }
    for (row, sum) in sums.into_iter().take(tile.rows).enumerate() {
        // SAFETY: as the caller promises.
        unsafe { tile.output.store_avx512(row, half * SIDE, sum) };
    }
}

/// Even and odd groups have tiles of their own, so that the next is loaded while one is multiplied.
///
/// # Safety
///
/// As for `half_panel`; the group is there, and `to` can be written.
#[inline]
unsafe fn multiply_group(tile: &Tile, signed: &[u8], half: usize, group: usize, to: *mut Products) {
    let columns = signed[(group * 2 + half) * HALF_GROUP_BYTES..].as_ptr();
    // SAFETY: as the caller promises.
    unsafe {
        let rows = tile.chunk(group, 0);
        if group.is_multiple_of(2) {
            zero!(0);
            load!(4, rows, GROUP);
            load!(6, columns, SIDE * 4);
            add_dots!("tdpbssd", 0, 4, 6);
            store!(0, to, SIDE * 4);
        } else {
            zero!(1);
            load!(5, rows, GROUP);
            load!(7, columns, SIDE * 4);
            add_dots!("tdpbssd", 1, 5, 7);
            store!(1, to, SIDE * 4);
        }
    }
}

/// # Safety
///
/// The float16 of half a panel are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn half_floats(from: *const u8) -> __m512 {
    // SAFETY: as the caller promises.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
}
