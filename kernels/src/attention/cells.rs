//! Where the positions of a tile are in the cache, and asking for them before they are read.

use std::ops::Range;

use super::TILE;
use crate::kv_layer::KvLayer;
use crate::vector::prefetch;

/// The cells of some positions that follow one another.
pub(super) struct Cells {
    pub(super) offsets: [usize; TILE],
    pub(super) count: usize,
    /// The KV heads that are wanted of them.
    pub(super) heads: Range<usize>,
}

impl Default for Cells {
    fn default() -> Self {
        Self { offsets: [0; TILE], count: 0, heads: 0..0 }
    }
}

impl Cells {
    pub(super) fn get(&self) -> &[usize] {
        &self.offsets[..self.count]
    }

    /// One of so many parts of them, as what is coming.
    pub(super) fn ahead(&self, cache: &KvLayer, part: usize, parts: usize) -> Ahead<'_> {
        let cells = &self.get()[self.count * part / parts..self.count * (part + 1) / parts];
        let head_bytes = cache.head_dim * cache.dtype.bytes();
        Ahead {
            cells,
            asks: 0..2 * cells.len(),
            addresses: [cache.key_address, cache.value_address].map(|address| address + self.heads.start * head_bytes),
            cell_bytes: cache.kv_heads * head_bytes,
            bytes: self.heads.len() * head_bytes,
        }
    }
}

/// What will be read soon: all heads of some cells, as they lie, which the processor is quicker to bring than one head
/// of each. It has few places for what is on its way, so it should be asked all the time and for little.
#[derive(Clone)]
pub(super) struct Ahead<'a> {
    cells: &'a [usize],
    /// First for the cells' keys, then for their values.
    asks: Range<usize>,
    /// The first of the heads in the first cell, of keys and of values, and what a cell takes.
    addresses: [usize; 2],
    cell_bytes: usize,
    /// What the heads take of it.
    bytes: usize,
}

impl Ahead<'_> {
    /// Some of so many parts.
    pub(super) fn share(&self, parts: Range<usize>, of: usize) -> Self {
        let at = |part: usize| self.asks.start + self.asks.len() * part / of;
        Self { asks: at(parts.start)..at(parts.end), ..self.clone() }
    }

    /// Ask for one of so many parts.
    #[expect(clippy::inline_always, reason = "see `Vector`")]
    #[inline(always)]
    pub(super) fn ask(&self, part: usize, parts: usize) {
        let at = |part: usize| self.asks.start + self.asks.len() * part / parts;
        for ask in at(part)..at(part + 1) {
            let count = self.cells.len();
            let (address, cell) = if ask < count { (self.addresses[0], ask) } else { (self.addresses[1], ask - count) };
            prefetch(address + self.cells[cell] * self.cell_bytes, self.bytes);
        }
    }
}
