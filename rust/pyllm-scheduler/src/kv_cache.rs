//! The blocks of the KV cache with the names of their contents: the pool and the prefix cache, kept in step. Knows no
//! sequences. Without prefix caching there are no names.

use crate::block_pool::BlockPool;
use crate::hash::BlockHash;
use crate::ids::{BlockId, StepId};
use crate::prefix::PrefixCache;

pub(crate) struct KvCache {
    pool: BlockPool,
    prefix: Option<PrefixCache>,
}

impl KvCache {
    pub(crate) fn new(num_blocks: u32, enable_prefix_caching: bool) -> Self {
        let prefix = enable_prefix_caching.then(|| PrefixCache::new(num_blocks));
        Self { pool: BlockPool::new(num_blocks), prefix }
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.pool.num_free()
    }

    pub(crate) fn num_cached(&self) -> usize {
        self.prefix.as_ref().map_or(0, PrefixCache::len)
    }

    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.pool.references(block)
    }

    /// A block to write to. The caller has looked at `num_free`.
    pub(crate) fn allocate(&mut self) -> BlockId {
        let block = self.pool.allocate().expect("the caller has looked at num_free");
        if let Some(prefix) = &mut self.prefix {
            prefix.evict(block);
        }
        block
    }

    pub(crate) fn share(&mut self, block: BlockId) {
        self.pool.share(block);
    }

    pub(crate) fn free(&mut self, block: BlockId) {
        let keep = self.prefix.as_ref().is_some_and(|prefix| prefix.contains(block));
        self.pool.free(block, keep);
    }

    /// Frees a sequence's blocks, the tail first, so that what is evicted first is what the fewest can use.
    pub(crate) fn free_chain(&mut self, blocks: &mut Vec<BlockId>) {
        for block in blocks.drain(..).rev() {
            self.free(block);
        }
    }

    /// Appends the blocks that hold the longest known start of `hashes` and may be read by step `planning`. Takes no
    /// reference to them.
    pub(crate) fn find_chain(
        &self,
        hashes: impl Iterator<Item = BlockHash>,
        planning: StepId,
        committed: StepId,
        found: &mut Vec<BlockId>,
    ) {
        if let Some(prefix) = &self.prefix {
            found.extend(hashes.map_while(|hash| prefix.find(hash, planning, committed)));
        }
    }

    pub(crate) fn store(&mut self, hash: BlockHash, block: BlockId, filled: StepId) {
        if let Some(prefix) = &mut self.prefix {
            prefix.store(hash, block, filled);
        }
    }

    /// Every block free, and nothing known.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.pool.num_blocks(), self.prefix.is_some());
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.prefix.as_ref().map_or(Ok(()), PrefixCache::audit)
    }

    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.pool.free_blocks()
    }
}
