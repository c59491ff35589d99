//! The products of a tile in AMX, and its operands' layout. A block is the contents of an AMX register: 16 rows of 64
//! bytes; as columns it has two bfloat16 per word.
#![expect(clippy::cast_ptr_alignment, reason = "what may lie anywhere is read as what may: `read_unaligned`, `loadu`")]

use std::arch::asm;
use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_cmpeq_epi16_mask, _mm512_cvtne2ps_pbh, _mm512_div_ps,
    _mm512_load_si512, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_set1_epi16,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_store_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};
use std::mem::transmute;
use std::ops::Range;

use crate::amx_tiles::{Configuration, add_dots, load, store, zero};
use crate::attention::TILE;
use crate::attention::cells::Ahead;
use crate::kv_layer::KvLayer;
use crate::vector::{Avx512, Bfloat16, Vector};

/// Rows of a block, and its columns of words.
pub(super) const SIDE: usize = 16;
/// Numbers in a row of bfloat16.
pub(super) const DEPTH: usize = 2 * SIDE;
pub(super) const BLOCK_BYTES: usize = SIDE * LINE_BYTES;
const LINE_BYTES: usize = 64;

/// The configuration for panels with `lanes` of a KV head. Tiles 0 and 1 are scores, 2 their queries; 3 and 4 are
/// keys, then values; 5 and 6 are sums of values, 7 their weights.
pub(super) fn configuration(lanes: usize) -> Configuration {
    let (scores, whole, sums) = ([SIDE, lanes * 4], [SIDE, LINE_BYTES], [lanes, LINE_BYTES]);
    Configuration::of([scores, scores, scores, whole, whole, sums, sums, sums])
}

/// Make blocks of the heads of a panel's queries: columns are pairs.
///
/// # Safety
///
/// The machine has AMX, the queries are valid, and there is room for the blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn load_queries(pairs: &[*const f32; SIDE], head_dim: usize, to: *mut u8) {
    for block in 0..head_dim / DEPTH {
        // SAFETY: as the caller promises.
        unsafe {
            let columns = Avx512::load_transposed(&pairs.map(|pair| pair.wrapping_add(block * SIDE)));
            for (row, column) in columns.into_iter().enumerate() {
                column.store(to.add(block * BLOCK_BYTES + row * LINE_BYTES).cast());
            }
        }
    }
}

/// A head's keys of a tile, in chunks of sixteen: their address, and the bytes from one key to the next.
pub(super) struct Keys {
    chunks: [(*const u8, usize); TILE / SIDE],
    num_chunks: usize,
}

/// Find the keys of a head in the cache. Chunks that are not contiguous there are copied, unless they have been.
///
/// # Safety
///
/// The cells are the cache's, and there is room for a head's keys.
pub(super) unsafe fn keys_of(cache: &KvLayer, cells: &[usize], head: usize, copies: *mut u8, copy: bool) -> Keys {
    let head_bytes = cache.head_dim * size_of::<Bfloat16>();
    let key = |cell: usize| cache.keys::<Bfloat16>(cell).wrapping_add(head * cache.head_dim).cast::<u8>();
    let mut chunks = [(std::ptr::null(), 0); TILE / SIDE];
    for (index, (chunk, cells)) in chunks.iter_mut().zip(cells.chunks(SIDE)).enumerate() {
        if cells.len() == SIDE && cells.iter().enumerate().all(|(index, &cell)| cell == cells[0] + index) {
            *chunk = (key(cells[0]).cast_const(), cache.cell_stride * size_of::<Bfloat16>());
            continue;
        }
        let to = copies.wrapping_add(index * SIDE * head_bytes);
        *chunk = (to.cast_const(), head_bytes);
        for (row, &cell) in cells.iter().enumerate().filter(|_| copy) {
            // SAFETY: as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(key(cell), to.add(row * head_bytes), head_bytes) };
        }
    }
    Keys { chunks, num_chunks: cells.len().div_ceil(SIDE) }
}

/// Write the scores of keys, a row of `SIDE` each, for the pairs of a panel that belong to their head.
///
/// # Safety
///
/// Tiles are configured; the blocks of the queries are valid, and there is room for the scores of whole chunks.
pub(super) unsafe fn scores(keys: &Keys, queries: *const u8, head_dim: usize, to: *mut f32, ahead: &Ahead<'_>) {
    for chunk in (0..keys.num_chunks).step_by(2) {
        let (both, blocks) = (chunk + 1 < keys.num_chunks, head_dim / DEPTH);
        // SAFETY: as the caller promises.
        unsafe {
            zero!(0);
            zero!(1);
            for block in 0..blocks {
                load!(2, queries.add(block * BLOCK_BYTES), LINE_BYTES);
                let (key, stride) = keys.chunks[chunk];
                load!(3, key.add(block * LINE_BYTES), stride);
                add_dots!("tdpbf16ps", 0, 3, 2);
                if both {
                    let (key, stride) = keys.chunks[chunk + 1];
                    load!(4, key.add(block * LINE_BYTES), stride);
                    add_dots!("tdpbf16ps", 1, 4, 2);
                }
                ahead.ask(chunk / 2 * blocks + block, TILE / SIDE / 2 * blocks);
            }
            store!(0, to.add(chunk * SIDE * SIDE), LINE_BYTES);
            if both {
                store!(1, to.add((chunk + 1) * SIDE * SIDE), LINE_BYTES);
            }
        }
    }
}

/// A head's values of a tile, to be made into blocks: a row is two positions with interleaved numbers. `DEPTH`
/// dimensions are two blocks, since splitting 16 bytes into halves is cheap.
pub(super) struct Values<'a> {
    pub(super) cache: &'a KvLayer,
    pub(super) cells: &'a [usize],
    pub(super) head: usize,
    pub(super) to: *mut u8,
}

impl Values<'_> {
    /// Write the blocks of the first positions, and zeros for the rest.
    ///
    /// # Safety
    ///
    /// The machine has AMX, the cells are the cache's, and there is room for the blocks.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn load(&self, visible: usize, ahead: &Ahead<'_>) {
        const ROWS_AN_ASK: usize = 4;
        let from = self.cache.values::<Bfloat16>(0).wrapping_add(self.head * self.cache.head_dim);
        let (width, blocks) = (self.cache.cell_stride, self.cache.head_dim / DEPTH);
        let value = |cell: usize| from.wrapping_add(cell * width).cast::<__m512i>();
        let (whole, rest) = self.cells[..visible].as_chunks::<2>();
        for row in 0..TILE / 2 {
            if row % ROWS_AN_ASK == 0 {
                ahead.ask(row / ROWS_AN_ASK, TILE / 2 / ROWS_AN_ASK);
            }
            let to = self.to.wrapping_add(row / SIDE * blocks * 2 * BLOCK_BYTES + row % SIDE * LINE_BYTES);
            // SAFETY: as the caller promises.
            unsafe {
                if let Some(&[even, odd]) = whole.get(row) {
                    let (even, odd) = (value(even), value(odd));
                    for block in 0..blocks {
                        let (even, odd) = (even.add(block).read_unaligned(), odd.add(block).read_unaligned());
                        take_turns(even, odd, to.add(block * 2 * BLOCK_BYTES));
                    }
                    continue;
                }
                let last = rest.first().filter(|_| row == whole.len());
                for block in 0..blocks {
                    let mut even = _mm512_setzero_si512();
                    if let Some(&cell) = last {
                        even = value(cell).add(block).read_unaligned();
                    }
                    take_turns(even, _mm512_setzero_si512(), to.add(block * 2 * BLOCK_BYTES));
                }
            }
        }
    }

    /// Whether the blocks have neither infinities nor NaNs.
    ///
    /// # Safety
    ///
    /// See `load`, which was called.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn are_finite(&self) -> bool {
        let exponent = _mm512_set1_epi16(0x7f80);
        (0..TILE * self.cache.head_dim / DEPTH).all(|line| {
            // SAFETY: as the caller promises.
            let numbers = unsafe { _mm512_load_si512(self.to.add(line * LINE_BYTES).cast()) };
            _mm512_cmpeq_epi16_mask(_mm512_and_si512(numbers, exponent), exponent) == 0
        })
    }
}

/// Write a row of two blocks.
///
/// # Safety
///
/// See `Values::load`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn take_turns(even: __m512i, odd: __m512i, to: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        _mm512_store_si512(to.cast(), _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(to.add(BLOCK_BYTES).cast(), _mm512_unpackhi_epi16(even, odd));
    }
}

/// Write the sums of values times weights, for some rows of these: `[SIDE, head_dim]`.
///
/// # Safety
///
/// Tiles are configured for these rows; the weights and the blocks of values are valid, with room for the sums.
pub(super) unsafe fn products(
    weights: *const u8,
    values: *const u8,
    head_dim: usize,
    rows: Range<usize>,
    to: *mut f32,
    ahead: &Ahead<'_>,
) {
    const WEIGHTS_BYTES: usize = TILE * 2;
    // SAFETY: as the caller promises.
    unsafe {
        let (weights, to) = (weights.add(rows.start * WEIGHTS_BYTES), to.add(rows.start * head_dim));
        let blocks = head_dim / DEPTH;
        for block in 0..blocks {
            zero!(5);
            zero!(6);
            for chunk in 0..TILE / DEPTH {
                let values = values.add((chunk * blocks + block) * 2 * BLOCK_BYTES);
                load!(7, weights.add(chunk * LINE_BYTES), WEIGHTS_BYTES);
                load!(3, values, LINE_BYTES);
                add_dots!("tdpbf16ps", 5, 7, 3);
                load!(4, values.add(BLOCK_BYTES), LINE_BYTES);
                add_dots!("tdpbf16ps", 6, 7, 4);
                ahead.ask(block * 2 + chunk, blocks * 2);
            }
            store!(5, to.add(block * DEPTH), head_dim * 4);
            store!(6, to.add(block * DEPTH + SIDE), head_dim * 4);
        }
    }
}

/// Divide the sums of a pair, times a factor, by its weights, and write the result in the order of dimensions.
///
/// # Safety
///
/// The machine has AMX, the sums are valid, and there is room for the result.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn finish(sums: *const f32, factor: f32, weights: f32, head_dim: usize, to: *mut Bfloat16) {
    let (factor, weights, zero) = (_mm512_set1_ps(factor), _mm512_set1_ps(weights), _mm512_setzero_ps());
    for at in (0..head_dim).step_by(DEPTH) {
        // SAFETY: as the caller promises.
        unsafe {
            let [lower, upper] = [0, SIDE].map(|half| {
                let sums = _mm512_mul_ps(_mm512_loadu_ps(sums.add(at + half)), factor);
                _mm512_add_ps(_mm512_div_ps(sums, weights), zero)
            });
            let rounded: __m512i = transmute::<__m512bh, _>(_mm512_cvtne2ps_pbh(upper, lower));
            let order = _mm512_loadu_si512((&raw const ORDER).cast());
            _mm512_storeu_si512(to.add(at).cast(), _mm512_permutexvar_epi16(order, rounded));
        }
    }
}

/// The column of each dimension in two blocks.
static ORDER: [u16; DEPTH] = {
    let mut order = [0; DEPTH];
    let mut dimension = 0;
    while dimension < DEPTH {
        let (sixteen_bytes, number) = (dimension / 8, dimension % 8);
        order[dimension] = (number / 4 * SIDE + sixteen_bytes * 4 + number % 4) as u16;
        dimension += 1;
    }
    order
};
