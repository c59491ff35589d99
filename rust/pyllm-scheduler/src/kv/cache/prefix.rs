//! The prefix cache of one tier: blocks by the hash of their contents. A device block is a hit for the step that fills
//! it, and for later steps once that step is committed: before that the device may be lost. Knows neither reference
//! counts nor sequences.

use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;

use crate::block_hash::{GroupHash, HashMapByDigest};
use crate::ids::{Block, StepId};
use crate::request::Retention;

pub(crate) struct PrefixCache<B> {
    blocks: HashMapByDigest<B>,
    names: Vec<Option<Name>>, // by block
}

/// The name of a block's contents.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) key: GroupHash,
    pub(crate) index: u32, // of the block in its chain
    pub(crate) filled: StepId,
    pub(crate) saved: Saved,
}

impl Name {
    /// The name of a copy on the host, which no step writes.
    pub(crate) fn on_host(self) -> Self {
        let saved = if self.saved == Saved::Withdrawn { Saved::Nothing } else { self.saved };
        Self { saved, ..self }
    }
}

/// Whether a block's contents are saved in an external store. A greater value replaces a smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Saved {
    /// Not saved, as far as is known.
    Nothing,
    /// Saved, or about to be, with this retention: the longest that a request asked for.
    For(Retention),
    /// A step may write the block again while a save reads it, so it is never saved.
    Withdrawn,
}

impl From<Retention> for Saved {
    fn from(retention: Retention) -> Self {
        if retention == Retention::None { Self::Nothing } else { Self::For(retention) }
    }
}

impl<B: Block> PrefixCache<B> {
    pub(crate) fn new(num_blocks: u32) -> Self {
        let blocks = HashMapByDigest::with_capacity_and_hasher(num_blocks as usize, BuildHasherDefault::default());
        Self { blocks, names: vec![None; num_blocks as usize] }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn name(&self, block: B) -> Option<Name> {
        self.names[block.number() as usize]
    }

    /// The blocks with contents.
    pub(crate) fn known(&self) -> impl Iterator<Item = (B, Name)> {
        let names = self.names.iter().enumerate();
        names.filter_map(|(block, name)| Some((B::new(block as u32), (*name)?)))
    }

    /// The block with these contents, even if its step is not committed.
    pub(crate) fn get(&self, key: GroupHash) -> Option<B> {
        self.blocks.get(&key).copied()
    }

    /// The block with these contents, if step `planning` may read them; steps before `committed` are committed.
    pub(crate) fn find(&self, key: GroupHash, planning: StepId, committed: StepId) -> Option<B> {
        let block = self.get(key)?;
        let filled = self.name(block)?.filled;
        (filled == planning || filled < committed).then_some(block)
    }

    /// Names a block by its contents. False: another block with the same contents exists, and keeps the name.
    pub(crate) fn store(&mut self, block: B, name: Name) -> bool {
        let Entry::Vacant(entry) = self.blocks.entry(name.key) else { return false };
        entry.insert(block);
        self.names[block.number() as usize] = Some(name);
        true
    }

    /// Raises a block's `Saved`; returns the new name. None: the block has no name, or its value was not smaller.
    pub(crate) fn mark_saved(&mut self, block: B, saved: Saved) -> Option<Name> {
        let name = self.names[block.number() as usize].as_mut().filter(|name| name.saved < saved)?;
        name.saved = saved;
        Some(*name)
    }

    /// Forgets a block's contents before it is reused.
    pub(crate) fn evict(&mut self, block: B) -> Option<Name> {
        let name = self.names[block.number() as usize].take()?;
        self.blocks.remove(&name.key);
        Some(name)
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let found = self.known().filter(|&(block, name)| self.get(name.key) == Some(block));
        let (found, expected) = (found.count(), self.blocks.len());
        if found == expected && self.known().count() == expected {
            return Ok(());
        }
        Err(format!("{found} contents of {expected} lead back to their block"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::BlockHash;
    use crate::ids::BlockId;

    fn name(key: &str, filled: u64) -> Name {
        let key = BlockHash::root(&[key]).of(0);
        Name { key, index: 0, filled: StepId(filled), saved: Saved::Nothing }
    }

    #[test]
    fn contents_are_found_by_the_step_that_fills_them_and_after_its_commit() {
        let mut cache = PrefixCache::new(2);
        cache.store(BlockId(1), name("x", 5));
        let find = |planning, committed| cache.find(name("x", 5).key, StepId(planning), StepId(committed));
        assert_eq!(find(5, 5), Some(BlockId(1)));
        assert_eq!(find(6, 5), None);
        assert_eq!(find(7, 6), Some(BlockId(1)));
    }

    #[test]
    fn evicting_forgets_the_hash_and_only_that_blocks() {
        let mut cache = PrefixCache::new(3);
        let (one, two) = (name("1", 0), name("2", 0));
        assert!(cache.store(BlockId(0), one));
        assert!(cache.store(BlockId(1), two));
        assert!(!cache.store(BlockId(2), one));
        assert!(cache.evict(BlockId(2)).is_none());
        assert!(cache.evict(BlockId(0)).is_some_and(|evicted| evicted.key == one.key));
        assert_eq!((cache.get(one.key), cache.get(two.key)), (None, Some(BlockId(1))));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_longest_retention_counts_once_until_the_save_is_withdrawn() {
        let mut cache = PrefixCache::new(2);
        cache.store(BlockId(0), name("x", 0));
        let [none, default, long] = [Retention::None, Retention::Default, Retention::Long].map(Saved::from);
        let marked = [none, default, default, long, default, Saved::Withdrawn, long]
            .map(|saved| cache.mark_saved(BlockId(0), saved).map(|name| name.saved));
        assert_eq!(marked, [None, Some(default), None, Some(long), None, Some(Saved::Withdrawn), None]);
        assert!(cache.mark_saved(BlockId(1), long).is_none(), "it holds nothing known");
        assert_eq!(cache.name(BlockId(0)).map(|name| name.on_host().saved), Some(Saved::Nothing));
    }
}
