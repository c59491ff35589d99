//! Saves of blocks' contents to an external store. A candidate holds no reference: if its block is evicted first, it is
//! not saved. A save under way holds a reference, so that its block is neither reused nor written until the save ends.
//! Knows neither reference counts nor the store.

use std::collections::{BTreeMap, VecDeque};

use crate::block_hash::{BlockHash, GroupHash};
use crate::ids::{Block, BlockId, SaveId, StepId};
use crate::request::Retention;

/// A block to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// Its id for `Scheduler::finish_save`.
    pub id: SaveId,
    /// The hash of its contents: keys and values of one group of layers.
    pub hash: BlockHash,
    /// The group.
    pub group: u32,
    /// Its position in its chain.
    pub index: u32,
    /// The block with the contents; the state of this number is numbered after all blocks.
    pub block: BlockId,
    /// The retention in the store; never `None`.
    pub retention: Retention,
}

#[derive(Clone, Copy)]
pub(crate) struct Candidate<B> {
    pub(crate) block: B,
    pub(crate) key: GroupHash,
    /// The block's position in its chain.
    pub(crate) index: u32,
    /// The step that writes it.
    pub(crate) filled: StepId,
    pub(crate) retention: Retention,
}

pub(crate) struct Saves<B> {
    candidates: VecDeque<Candidate<B>>,
    under_way: BTreeMap<SaveId, B>,
    most_candidates: usize,
    most_under_way: usize, // 0: no saves
    /// Candidates that were dropped.
    pub(crate) num_dropped: u64,
}

impl<B: Block> Saves<B> {
    pub(crate) fn new(most_candidates: u32, most_under_way: u32) -> Self {
        Self {
            candidates: VecDeque::new(),
            under_way: BTreeMap::new(),
            most_candidates: most_candidates as usize,
            most_under_way: most_under_way as usize,
            num_dropped: 0,
        }
    }

    pub(crate) fn num_under_way(&self) -> usize {
        self.under_way.len()
    }

    /// References of saves to a block.
    pub(crate) fn references(&self, block: B) -> u32 {
        self.under_way.values().filter(|&&saved| saved == block).count() as u32
    }

    pub(crate) fn propose(&mut self, candidate: Candidate<B>) {
        if self.most_under_way == 0 {
            return;
        }
        if self.candidates.len() == self.most_candidates {
            self.num_dropped += 1;
            return;
        }
        self.candidates.push_back(candidate);
    }

    /// Drops the candidates of a block that may be written again.
    pub(crate) fn withdraw(&mut self, block: B) {
        let before = self.candidates.len();
        self.candidates.retain(|candidate| candidate.block != block);
        self.num_dropped += (before - self.candidates.len()) as u64;
    }

    /// Whether `next` returns a candidate: one that a step before `committed` has written.
    pub(crate) fn has_next(&self, committed: StepId) -> bool {
        let is_written = self.candidates.front().is_some_and(|candidate| candidate.filled < committed);
        is_written && self.under_way.len() < self.most_under_way
    }

    /// The next candidate. The caller calls `begin` for it, or counts it as dropped.
    pub(crate) fn next(&mut self, committed: StepId) -> Option<Candidate<B>> {
        if self.has_next(committed) { self.candidates.pop_front() } else { None }
    }

    /// Begins a save. The caller adds a reference to the block, and drops it after `finish`.
    pub(crate) fn begin(&mut self, save: SaveId, block: B) {
        self.under_way.insert(save, block);
    }

    /// Ends a save. Returns its block, whose reference the caller drops.
    pub(crate) fn finish(&mut self, save: SaveId) -> Option<B> {
        self.under_way.remove(&save)
    }

    /// Drops all candidates, because their contents have lost their names.
    pub(crate) fn forget(&mut self) {
        self.num_dropped += self.candidates.len() as u64;
        self.candidates.clear();
    }

    /// Drops all candidates and all saves under way after the loss of the device.
    pub(crate) fn clear(&mut self) {
        self.num_dropped += self.under_way.len() as u64;
        self.under_way.clear();
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::BlockHash;

    fn candidate(block: u32, filled: u64) -> Candidate<BlockId> {
        let key = BlockHash::root(&[&block.to_string()]).of(0);
        Candidate { block: BlockId(block), key, index: 0, filled: StepId(filled), retention: Retention::Default }
    }

    fn take(saves: &mut Saves<BlockId>, committed: u64) -> Vec<u32> {
        let mut taken = Vec::new();
        while let Some(next) = saves.next(StepId(committed)) {
            saves.begin(SaveId(next.block.0.into()), next.block);
            taken.push(next.block.0);
        }
        taken
    }

    #[test]
    fn what_committed_steps_wrote_is_taken_up_to_a_bound() {
        let mut saves = Saves::new(9, 2);
        for (block, filled) in [(1, 4), (2, 4), (3, 4), (4, 5)] {
            saves.propose(candidate(block, filled));
        }
        assert_eq!(take(&mut saves, 4), []);
        assert_eq!(take(&mut saves, 5), [1, 2]);
        assert_eq!((saves.num_under_way(), saves.references(BlockId(1))), (2, 1));
        assert_eq!((saves.finish(SaveId(1)), saves.finish(SaveId(1))), (Some(BlockId(1)), None));
        assert_eq!((take(&mut saves, 5), take(&mut saves, 6)), (vec![3], vec![]));
    }

    #[test]
    fn what_may_be_written_again_or_finds_no_place_is_dropped() {
        let mut saves = Saves::new(2, 2);
        for block in 1..4 {
            saves.propose(candidate(block, 0));
        }
        saves.withdraw(BlockId(1));
        assert_eq!((take(&mut saves, 1), saves.num_dropped), (vec![2], 2));
        let mut none = Saves::new(2, 0);
        none.propose(candidate(1, 0));
        assert_eq!((take(&mut none, 1), none.num_dropped), (vec![], 0));
    }
}
