//! The division of one call's work. Does not affect results.

use std::ops::Range;

use super::{PagedAttention, SPLIT, Sequences, TILE};

/// Tokens that share a loaded tile of keys and values.
const TOKENS_AT_ONCE: usize = 32;
/// The most pairs of these tokens and query heads, whose states should stay in the L2 cache.
const PAIRS_AT_ONCE: usize = 512;
/// Up to this many tokens of a row, loading a tile costs more than using it.
const FEW_TOKENS: usize = 4;

/// Some tokens of a row and some of its heads: the work of one task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) row: usize,
    pub(super) first_token: usize,
    pub(super) num_tokens: usize,
    /// Position of the first token in its sequence.
    pub(super) position: usize,
    /// The first position that the first token sees, and the end of those that the last one sees.
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) first_kv_head: usize,
    pub(super) num_kv_heads: usize,
    /// Index of the partial result, if the work is one split.
    pub(super) partial: Option<usize>,
    pub(super) split: usize,
}

impl Work {
    /// Pairs of a token and a query head.
    pub(super) fn pairs(&self, group: usize) -> usize {
        self.num_tokens * self.num_kv_heads * group
    }

    /// The first split with a visible position.
    pub(super) fn first_split(&self) -> usize {
        self.begin / SPLIT
    }

    /// The splits with visible positions.
    pub(super) fn splits(&self) -> Range<usize> {
        self.first_split()..self.end.div_ceil(SPLIT)
    }

    /// The positions of a split, from its first tile with a visible position on.
    pub(super) fn positions(&self, split: usize) -> Range<usize> {
        (split * SPLIT).max(self.begin / TILE * TILE)..self.end.min((split + 1) * SPLIT)
    }

    /// The token and head of a pair. Pairs are ordered by KV head, then token, then query head.
    pub(super) fn token_and_head(&self, pair: usize, group: usize) -> (usize, usize) {
        let kv_head = pair / group / self.num_tokens;
        let token = pair / group % self.num_tokens;
        (self.first_token + token, (self.first_kv_head + kv_head) * group + pair % group)
    }
}

/// The works of one call, and their memory, which is reused by the next call.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) works: Vec<Work>,
    /// The works whose splits are separate tasks, to be merged.
    pub(super) merges: Vec<Work>,
    pub(super) num_partials: usize,
    pub(super) partials: Vec<f32>,
}

impl Plan {
    pub(super) fn make(&mut self, sequences: &Sequences<'_>, op: &PagedAttention, num_threads: usize) {
        let (kv_heads, window) = (op.cache.kv_heads, op.window);
        let tokens_at_once = (PAIRS_AT_ONCE / op.group()).clamp(1, TOKENS_AT_ONCE);
        self.works.clear();
        self.merges.clear();
        self.num_partials = 0;
        let num_rows = sequences.slots.len();
        let (apart, enough) = (num_rows * kv_heads < 4 * num_threads && num_threads > 1, num_rows >= 4 * num_threads);
        for row in 0..num_rows {
            let (start, end) = (sequences.query_starts[row] as usize, sequences.query_starts[row + 1] as usize);
            let length = sequences.lengths[row] as usize;
            let context = length - (end - start);
            let few = end - start <= FEW_TOKENS;
            for first_token in (start..end).step_by(tokens_at_once) {
                let num_tokens = tokens_at_once.min(end - first_token);
                let num_kv_heads = if few && (enough || num_threads == 1) { kv_heads } else { 1 };
                for first_kv_head in (0..kv_heads).step_by(num_kv_heads) {
                    let position = context + first_token - start;
                    let work = Work {
                        row,
                        first_token,
                        num_tokens,
                        position,
                        begin: (position + 1).saturating_sub(window),
                        end: op.end(position + num_tokens - 1, length),
                        first_kv_head,
                        num_kv_heads,
                        partial: None,
                        split: 0,
                    };
                    let work = Work { split: work.first_split(), ..work };
                    if few && apart && work.splits().len() > 1 {
                        self.add_splits(work);
                    } else {
                        self.works.push(work);
                    }
                }
            }
        }
    }

    fn add_splits(&mut self, work: Work) {
        let first = self.num_partials;
        self.num_partials += work.splits().len();
        self.merges.push(Work { partial: Some(first), ..work });
        let splits =
            (first..).zip(work.splits()).map(|(partial, split)| Work { partial: Some(partial), split, ..work });
        self.works.extend(splits);
    }
}
