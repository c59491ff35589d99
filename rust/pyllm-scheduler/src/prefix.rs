//! Which block holds which contents, by hash. A block is a hit for the step that fills it, and for every other step once
//! that one is committed: until then the device may be lost. Knows neither reference counts nor sequences.

use std::collections::hash_map::Entry;

use crate::hash::{BlockHash, HashMapByDigest};
use crate::ids::{BlockId, StepId};

pub(crate) struct PrefixCache {
    blocks: HashMapByDigest<BlockId>,
    contents: Vec<Option<Content>>, // by block
}

#[derive(Clone, Copy)]
struct Content {
    hash: BlockHash,
    filled: StepId,
}

impl PrefixCache {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { blocks: HashMapByDigest::default(), contents: vec![None; num_blocks as usize] }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.contents[block.0 as usize].is_some()
    }

    /// The block with these contents, if step `planning` may read them; steps before `committed` are committed.
    pub(crate) fn find(&self, hash: BlockHash, planning: StepId, committed: StepId) -> Option<BlockId> {
        let block = *self.blocks.get(&hash)?;
        let filled = self.contents[block.0 as usize]?.filled;
        (filled == planning || filled < committed).then_some(block)
    }

    /// Keeps a block by its contents, which step `filled` writes. Of two blocks with the same contents the first stays.
    pub(crate) fn store(&mut self, hash: BlockHash, block: BlockId, filled: StepId) {
        if let Entry::Vacant(entry) = self.blocks.entry(hash) {
            entry.insert(block);
            self.contents[block.0 as usize] = Some(Content { hash, filled });
        }
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let known = self.contents.iter().enumerate().filter_map(|(block, content)| Some((block, (*content)?)));
        let found = known.filter(|(block, content)| self.blocks.get(&content.hash) == Some(&BlockId(*block as u32)));
        let (found, expected) = (found.count(), self.blocks.len());
        if found == expected { Ok(()) } else { Err(format!("{found} contents of {expected} lead back to their block")) }
    }

    /// Forgets what a block holds, before it is written again.
    pub(crate) fn evict(&mut self, block: BlockId) {
        if let Some(content) = self.contents[block.0 as usize].take() {
            self.blocks.remove(&content.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_by_the_step_that_fills_them_and_after_its_commit() {
        let mut cache = PrefixCache::new(2);
        let hash = BlockHash::root(&["x"]);
        cache.store(hash, BlockId(1), StepId(5));
        let find = |planning, committed| cache.find(hash, StepId(planning), StepId(committed));
        assert_eq!(find(5, 5), Some(BlockId(1)));
        assert_eq!(find(6, 5), None);
        assert_eq!(find(7, 6), Some(BlockId(1)));
    }

    #[test]
    fn evicting_forgets_the_hash_and_only_that_blocks() {
        let mut cache = PrefixCache::new(3);
        let (one, two) = (BlockHash::root(&["1"]), BlockHash::root(&["2"]));
        cache.store(one, BlockId(0), StepId(0));
        cache.store(two, BlockId(1), StepId(0));
        cache.store(one, BlockId(2), StepId(0));
        assert!(!cache.contains(BlockId(2)));
        cache.evict(BlockId(2));
        cache.evict(BlockId(0));
        assert_eq!(cache.find(one, StepId(1), StepId(1)), None);
        assert_eq!(cache.find(two, StepId(1), StepId(1)), Some(BlockId(1)));
        assert_eq!(cache.len(), 1);
    }
}
