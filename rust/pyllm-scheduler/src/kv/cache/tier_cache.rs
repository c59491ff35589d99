//! The blocks of one tier of the KV cache, device or host, with the names of their contents: a pool and a prefix cache,
//! kept consistent. Knows no other tier.

use crate::block_hash::GroupHash;
use crate::ids::{Block, StepId};
use crate::kv::cache::block_pool::BlockPool;
use crate::kv::cache::prefix::{Name, PrefixCache, Saved};

pub(crate) struct TierCache<B> {
    pool: BlockPool<B>,
    names: PrefixCache<B>,
}

/// The previous contents of an allocated block.
pub(crate) struct Evicted {
    pub(crate) name: Name,
    pub(crate) hits: u8,
    pub(crate) is_superseded: bool,
}

impl<B: Block> TierCache<B> {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { pool: BlockPool::new(num_blocks), names: PrefixCache::new(num_blocks) }
    }

    pub(crate) fn num_blocks(&self) -> u32 {
        self.pool.num_blocks()
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.pool.num_free()
    }

    pub(crate) fn num_cached(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn references(&self, block: B) -> u32 {
        self.pool.references(block)
    }

    pub(crate) fn hits(&self, block: B) -> u8 {
        self.pool.hits(block)
    }

    pub(crate) fn name(&self, block: B) -> Option<Name> {
        self.names.name(block)
    }

    pub(crate) fn known(&self) -> impl Iterator<Item = (B, Name)> {
        self.names.known()
    }

    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = B> {
        self.pool.free_blocks()
    }

    /// See `PrefixCache::get`.
    pub(crate) fn get(&self, key: GroupHash) -> Option<B> {
        self.names.get(key)
    }

    /// See `PrefixCache::find`.
    pub(crate) fn find(&self, key: GroupHash, planning: StepId, committed: StepId) -> Option<B> {
        self.names.find(key, planning, committed)
    }

    /// See `BlockPool::num_owed`.
    pub(crate) fn num_owed(&self) -> u32 {
        self.pool.num_owed()
    }

    /// A block to write to, with one reference, and its old contents. See `BlockPool::allocate`.
    pub(crate) fn allocate(&mut self, in_window: bool) -> Option<(B, Option<Evicted>)> {
        let block = self.pool.allocate(in_window)?;
        let (hits, is_superseded) = (self.pool.hits(block), self.pool.is_superseded(block));
        let evicted = self.names.evict(block).map(|name| Evicted { name, hits, is_superseded });
        if evicted.is_some() {
            self.pool.forget(block);
        }
        Some((block, evicted))
    }

    pub(crate) fn share(&mut self, block: B) {
        self.pool.share(block);
    }

    pub(crate) fn hold(&mut self, block: B) {
        self.pool.hold(block);
    }

    pub(crate) fn free(&mut self, block: B) {
        self.pool.free(block);
    }

    /// Names the contents of a block in use. False: another block has the same contents, and keeps the name.
    pub(crate) fn store(&mut self, block: B, name: Name) -> bool {
        let is_first = self.names.store(block, name);
        if is_first {
            self.pool.keep(block, name.index);
        }
        is_first
    }

    /// See `PrefixCache::mark_saved`.
    pub(crate) fn mark_saved(&mut self, block: B, saved: Saved) -> Option<Name> {
        self.names.mark_saved(block, saved)
    }

    /// Raises the hits of a block in use to those of its contents on the other tier.
    pub(crate) fn raise_hits(&mut self, block: B, hits: u8) {
        self.pool.raise_hits(block, hits);
    }

    /// Lets a block go before others, if it has contents.
    pub(crate) fn supersede(&mut self, block: B) {
        if self.names.name(block).is_some() {
            self.pool.supersede(block);
        }
    }

    /// Moves a block to the end of its list, since its contents were in use on the other tier, with this many hits.
    pub(crate) fn refresh(&mut self, block: B, hits: u8) {
        self.pool.hold(block);
        self.pool.raise_hits(block, hits);
        self.pool.free(block);
    }

    /// Forgets a block's contents, and returns their name if they are known.
    pub(crate) fn forget_block(&mut self, block: B) -> Option<Name> {
        let name = self.names.evict(block);
        if name.is_some() {
            self.pool.forget(block);
        }
        name
    }

    /// Forgets the contents of all blocks; blocks in use stay in use.
    pub(crate) fn forget(&mut self) {
        for block in (0..self.num_blocks()).map(B::new) {
            self.forget_block(block);
        }
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.pool.audit()?;
        self.names.audit()
    }
}
