//! The number of blocks of a sequence, by the attention windows of the model's layers. Layers with equal windows form
//! groups of equal size, and each group has its own block for the same tokens, so one pool of equal blocks serves all.
//! In a group with a window, a sequence has the blocks that are still read and those of its next chunk; it frees the
//! former as it takes the latter. Knows no block ids.

use crate::config::{Config, KvGroup};

/// The blocks of a sequence in one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLayout {
    window: Option<u32>,
    block_size: u32,
    /// Maximum number of blocks that a sequence has at once: with a window, those that the largest chunk reads.
    most_blocks: u32,
}

/// The blocks of a sequence in all groups.
pub(crate) struct KvLayout {
    pub(crate) groups: Vec<GroupLayout>,
    pub(crate) block_size: u32,
}

impl GroupLayout {
    pub(crate) fn new(group: KvGroup, block_size: u32, largest_chunk: u32) -> Self {
        let most_blocks = |window: u32| (window - 1).saturating_add(largest_chunk).div_ceil(block_size) + 1;
        Self { window: group.window, block_size, most_blocks: group.window.map_or(u32::MAX, most_blocks) }
    }

    /// The layout of a single window, for lookups only.
    pub(crate) fn of_window(window: Option<u32>, block_size: u32) -> Self {
        Self::new(KvGroup { window }, block_size, 1)
    }

    pub(crate) fn has_window(self) -> bool {
        self.window.is_some()
    }

    /// The first block that the token at `position` reads.
    pub(crate) fn first_block(self, position: u32) -> u32 {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window) / self.block_size)
    }

    /// The end of a sequence's blocks with room for the tokens before `end`, as far as it may have them at once. No
    /// token before `lowest` is computed again.
    pub(crate) fn end_block(self, lowest: u32, end: u32) -> u32 {
        end.div_ceil(self.block_size).min(self.reach(lowest))
    }

    /// The end of the blocks that may be written before `lowest` moves on.
    fn reach(self, lowest: u32) -> u32 {
        self.first_block(lowest).saturating_add(self.most_blocks)
    }

    /// The longest start, of at most `most` blocks, after which a sequence can continue: all blocks that its next token
    /// reads are known.
    pub(crate) fn longest_start(self, most: u32, is_known: impl Fn(u32) -> bool) -> u32 {
        let mut length = most;
        loop {
            let first = self.first_block(length * self.block_size);
            // The earliest block rules out the most.
            let missing = if first < length && !is_known(first) {
                Some(first)
            } else {
                (first + 1..length).rev().find(|&index| !is_known(index))
            };
            match missing {
                Some(index) => length = index,
                None => return length,
            }
        }
    }
}

impl KvLayout {
    /// Blocks of one group that hold `num_tokens` tokens.
    pub(crate) fn blocks_for(&self, num_tokens: u32) -> u32 {
        num_tokens.div_ceil(self.block_size)
    }

    /// Uses these settings' largest chunk. If larger ones are allowed later, prompts still come in chunks of this size.
    pub(crate) fn new(config: &Config) -> Self {
        let largest_chunk = match config.long_prefill_token_threshold {
            0 => config.max_num_batched_tokens,
            threshold => threshold.min(config.max_num_batched_tokens),
        };
        let groups = config.kv_groups.iter();
        let groups = groups.map(|&group| GroupLayout::new(group, config.block_size, largest_chunk)).collect();
        Self { groups, block_size: config.block_size }
    }

    /// The end of the tokens that may be planned before `lowest` moves on; `u32::MAX` without windows.
    pub(crate) fn reach(&self, lowest: u32) -> u32 {
        let blocks = self.groups.iter().map(|group| group.reach(lowest)).min().unwrap_or(u32::MAX);
        blocks.saturating_mul(self.block_size)
    }

    /// Maximum number of blocks of `num_samples` samples that grow from one prompt to `num_tokens` tokens. They share
    /// the blocks that the prompt fills, except in windows, where each sample replaces its own.
    pub(crate) fn most_blocks(&self, num_prompt_tokens: u32, num_tokens: u32, num_samples: u32) -> u64 {
        let (num_blocks, num_samples) = (u64::from(num_tokens.div_ceil(self.block_size)), u64::from(num_samples));
        let num_shared = u64::from(num_prompt_tokens / self.block_size).min(num_blocks);
        let of_group = |group: &GroupLayout| match group.window {
            None => num_shared + (num_blocks - num_shared) * num_samples,
            Some(_) => num_blocks.min(group.most_blocks.into()) * num_samples,
        };
        self.groups.iter().map(of_group).sum()
    }

    /// Blocks that a sequence of `num_known` tokens takes for `num_tokens` more. Rounded up for each sequence, because
    /// the blocks of several may become full at the same time.
    pub(crate) fn growth(&self, num_known: u32, num_tokens: u32) -> u32 {
        let (num_blocks, num_new) = (num_known.div_ceil(self.block_size), num_tokens.div_ceil(self.block_size));
        self.groups.iter().map(|group| num_new.min(group.most_blocks.saturating_sub(num_blocks))).sum()
    }

    /// Length in tokens of the longest sequence that fits `num_blocks` blocks; none if windows let any length fit.
    pub(crate) fn longest_sequence(&self, num_blocks: u32) -> Option<u32> {
        let fits = |length: u32| self.most_blocks(0, length * self.block_size, 1) <= u64::from(num_blocks);
        // Without windows a block holds at most `block_size` tokens; with windows, blocks are used again.
        let (mut fitting, mut too_long) = (0, num_blocks + 1);
        if fits(too_long) {
            return None;
        }
        while fitting + 1 < too_long {
            let middle = fitting.midpoint(too_long);
            *(if fits(middle) { &mut fitting } else { &mut too_long }) = middle;
        }
        Some(fitting * self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(window: Option<u32>, block_size: u32) -> GroupLayout {
        GroupLayout::new(KvGroup { window }, block_size, 5)
    }

    fn layout(windows: &[Option<u32>]) -> KvLayout {
        KvLayout { groups: windows.iter().map(|&window| group(window, 4)).collect(), block_size: 4 }
    }

    #[test]
    fn a_token_reads_its_window_and_its_own_position_is_in_it() {
        // Position 6 reads 3 to 6, position 7 reads 4 to 7.
        let first_blocks = [0, 3, 6, 7, 10, 11].map(|position| group(Some(4), 4).first_block(position));
        assert_eq!(first_blocks, [0, 0, 0, 1, 1, 2]);
        assert_eq!((group(Some(1), 4).first_block(8), group(None, 4).first_block(1_000)), (2, 0));
    }

    #[test]
    fn a_window_has_the_blocks_that_a_chunk_of_the_largest_size_reads() {
        // A chunk of 5 from position 12 reads 9 to 16, which are in blocks 2 to 4.
        let group = group(Some(4), 4);
        assert_eq!((group.first_block(12), group.end_block(12, 17), group.end_block(12, 100)), (2, 5, 5));
    }

    #[test]
    fn a_long_sequence_has_all_of_a_full_group_and_a_part_of_a_window() {
        let (full, mixed) = (layout(&[None]), layout(&[None, Some(4), Some(4)]));
        assert_eq!((full.most_blocks(9, 40, 1), full.most_blocks(9, 40, 3)), (10, 2 + 3 * 8));
        assert_eq!((mixed.most_blocks(9, 40, 1), mixed.most_blocks(9, 40, 3)), (10 + 2 * 3, 26 + 2 * 9));
        assert_eq!((full.growth(9, 5), mixed.growth(9, 5), mixed.growth(4, 9)), (2, 2, 3 + 2 + 2));
        assert_eq!((full.reach(12), mixed.reach(12)), (u32::MAX, 20));
    }

    #[test]
    fn the_longest_sequence_is_the_last_that_has_its_blocks() {
        assert_eq!(layout(&[None]).longest_sequence(10), Some(40));
        assert_eq!(layout(&[None, Some(4), Some(4)]).longest_sequence(10), Some(16));
        assert_eq!((layout(&[Some(4)]).longest_sequence(2), layout(&[Some(4)]).longest_sequence(3)), (Some(8), None));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_longest_start_is_the_longest_whose_last_window_is_known(
            known in prop::collection::vec(prop::bool::weighted(0.8), 0..40),
            window in prop::option::of(1..30_u32),
            block_size in 1..6_u32,
        ) {
            let group = group(window, block_size);
            let is_start = |length: &u32| {
                (group.first_block(length * block_size)..*length).all(|index| known[index as usize])
            };
            let most = known.len() as u32;
            let expected = (0..=most).rev().find(is_start);
            prop_assert_eq!(Some(group.longest_start(most, |index| known[index as usize])), expected);
        }

        #[test]
        fn a_sequence_never_has_more_than_its_most_blocks(
            window in prop::option::of(1..30_u32), lowest in 0..100_u32, length in 1..100_u32,
        ) {
            let (group, all) = (group(window, 4), layout(&[window]));
            let end = group.end_block(lowest, lowest + length);
            prop_assert!(u64::from(end - group.first_block(lowest)) <= all.most_blocks(0, lowest + length, 1));
            // There is room for the largest chunk, too.
            prop_assert!(end * 4 >= lowest + length.min(5));
        }
    }
}
