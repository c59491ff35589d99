//! The cells of a tile's positions in the cache, and their prefetches.

use std::ops::Range;

use super::TILE;
use crate::kv_layer::KvLayer;
use crate::vector::prefetch;

/// The cells of consecutive positions.
pub(super) struct Cells {
    pub(super) offsets: [usize; TILE],
    pub(super) count: usize,
    /// The KV heads that are read.
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

    /// One of `parts` parts of the cells, to be prefetched.
    pub(super) fn ahead(&self, cache: &KvLayer, part: usize, parts: usize) -> Ahead<'_> {
        let cells = &self.get()[self.count * part / parts..self.count * (part + 1) / parts];
        let head_bytes = cache.head_dim * cache.dtype.bytes();
        Ahead {
            cells,
            asks: 0..2 * cells.len(),
            addresses: [cache.key_address, cache.value_address].map(|address| address + self.heads.start * head_bytes),
            cell_bytes: cache.cell_stride * cache.dtype.bytes(),
            bytes: self.heads.len() * head_bytes,
        }
    }
}

/// Cells to be read soon, with all heads as they lie, which load faster than one head of each. The processor has few
/// slots for loads under way, so prefetches should be small and steady.
#[derive(Clone)]
pub(super) struct Ahead<'a> {
    cells: &'a [usize],
    /// Indices of prefetches: first for the cells' keys, then for their values.
    asks: Range<usize>,
    /// Address of the first head in cell 0, of keys and of values; `cell_bytes` is the size of a cell.
    addresses: [usize; 2],
    cell_bytes: usize,
    /// Bytes of the heads in a cell.
    bytes: usize,
}

impl Ahead<'_> {
    /// A range of `of` equal parts.
    pub(super) fn share(&self, parts: Range<usize>, of: usize) -> Self {
        let at = |part: usize| self.asks.start + self.asks.len() * part / of;
        Self { asks: at(parts.start)..at(parts.end), ..self.clone() }
    }

    /// Prefetch one of `parts` equal parts.
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
