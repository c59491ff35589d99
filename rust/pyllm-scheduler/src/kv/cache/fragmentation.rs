//! Fragmentation of a tier: empty token slots, and runs of free blocks. Plans do not depend on it: any free block will
//! do, so only the empty slots of blocks in use are wasted.

use std::collections::BTreeMap;

use crate::ids::Block;

/// The fragmentation of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFragmentation {
    /// Token slots without a token, in blocks in use.
    pub num_empty_slots: u64,
    /// Runs of adjacent free blocks.
    pub num_free_runs: u64,
    /// Blocks in the longest run.
    pub longest_free_run: u64,
}

impl TierFragmentation {
    /// Computes it from the `free` blocks below `num_blocks`, in any order. `tails` are the last blocks of sequences,
    /// each with the number of empty slots in the sequence's blocks.
    pub(crate) fn of<B: Block>(
        num_blocks: u32,
        free: impl Iterator<Item = B>,
        tails: impl Iterator<Item = (B, u32)>,
    ) -> Self {
        let mut is_free = vec![false; num_blocks as usize];
        for block in free {
            is_free[block.number() as usize] = true;
        }
        let runs = is_free.chunk_by(|one, next| one == next).filter(|run| run[0]).map(|run| run.len() as u64);
        let (num_free_runs, longest_free_run) = runs.fold((0, 0), |(count, most), run| (count + 1, most.max(run)));
        let mut empty = BTreeMap::<u32, u32>::new(); // Samples of a request may share a block until one writes to it.
        for (block, num_empty) in tails {
            let least = empty.entry(block.number()).or_insert(num_empty);
            *least = num_empty.min(*least);
        }
        Self { num_empty_slots: empty.values().copied().map(u64::from).sum(), num_free_runs, longest_free_run }
    }

    /// Every figure with its name after a prefix.
    fn named(self, prefix: &str) -> [(String, u64); 3] {
        [
            (format!("num_empty_{prefix}slots"), self.num_empty_slots),
            (format!("num_free_{prefix}runs"), self.num_free_runs),
            (format!("longest_free_{prefix}run"), self.longest_free_run),
        ]
    }
}

/// The fragmentation of both tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// The device.
    pub device: TierFragmentation,
    /// The host.
    pub host: TierFragmentation,
}

impl Fragmentation {
    /// Every figure with its name.
    pub fn named(self) -> impl Iterator<Item = (String, u64)> {
        self.device.named("").into_iter().chain(self.host.named("host_"))
    }
}

#[cfg(test)]
mod tests {
    use super::TierFragmentation;
    use crate::ids::BlockId;

    #[test]
    fn runs_are_counted_and_shared_blocks_once() {
        let free = [7, 0, 1, 4].map(BlockId);
        let tails = [(BlockId(2), 5), (BlockId(3), 1), (BlockId(2), 3)];
        let found = TierFragmentation::of(8, free.into_iter(), tails.into_iter());
        assert_eq!(found, TierFragmentation { num_empty_slots: 4, num_free_runs: 3, longest_free_run: 2 });
    }
}
