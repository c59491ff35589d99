//! Where the positions of a tile are in the cache, and asking for them before they are read.

use std::ops::Range;

use super::TILE;
use crate::cache::Cache;
use crate::vector::prefetch;

/// The cells of some positions that follow one another.
pub(super) struct Cells {
    pub(super) places: [usize; TILE],
    pub(super) count: usize,
    /// The KV heads that are wanted of them.
    pub(super) heads: Range<usize>,
}

impl Default for Cells {
    fn default() -> Self {
        Self { places: [0; TILE], count: 0, heads: 0..0 }
    }
}

impl Cells {
    pub(super) fn get(&self) -> &[usize] {
        &self.places[..self.count]
    }

    /// One of so many parts of them, as what is coming: keys and values.
    pub(super) fn ahead(&self, cache: &Cache, part: usize, parts: usize) -> [Ahead<'_>; 2] {
        let cells = &self.get()[self.count * part / parts..self.count * (part + 1) / parts];
        let head_bytes = cache.head_dim * cache.element.bytes();
        [cache.key_address, cache.value_address].map(|address| Ahead {
            cells,
            address: address + self.heads.start * head_bytes,
            cell_bytes: cache.kv_heads * head_bytes,
            bytes: self.heads.len() * head_bytes,
        })
    }
}

/// What will be read soon: all heads of some cells, as they lie, which the processor is quicker to bring than one head of
/// each.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    cells: &'a [usize],
    /// The first of the heads in the first cell, and what a cell takes.
    address: usize,
    cell_bytes: usize,
    /// What the heads take of it.
    bytes: usize,
}

impl Ahead<'_> {
    /// Ask for one of so many parts.
    #[expect(clippy::inline_always, reason = "see `Vector`")]
    #[inline(always)]
    pub(super) fn ask(&self, part: usize, parts: usize) {
        let end = |part: usize| self.cells.len() * part / parts;
        for cell in &self.cells[end(part)..end(part + 1)] {
            prefetch(self.address + cell * self.cell_bytes, self.bytes);
        }
    }
}
