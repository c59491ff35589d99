//! The assignment of pairs, of a token and a head, to panels of sixteen lanes, which are of one KV head or of as many
//! as fit. Does not affect results.

use std::ops::Range;

use super::products::SIDE;
use crate::attention::PagedAttention;
use crate::attention::plan::Work;

pub(super) struct Panels {
    /// Pairs of one KV head in a panel.
    pub(super) lanes: usize,
    /// KV heads in a panel.
    pub(super) heads: usize,
    pub(super) count: usize,
    pairs_a_head: usize,
    /// Panels of one KV head, or of those that share one.
    a_head: usize,
    num_pairs: usize,
}

impl Panels {
    pub(super) fn of(op: &PagedAttention, work: &Work) -> Self {
        Self::with(work.num_kv_heads, work.num_tokens * op.group())
    }

    fn with(kv_heads: usize, pairs_a_head: usize) -> Self {
        let lanes = pairs_a_head.min(SIDE);
        let heads = (SIDE / lanes).min(kv_heads);
        let a_head = pairs_a_head.div_ceil(SIDE);
        let count = kv_heads.div_ceil(heads) * a_head;
        Self { lanes, heads, count, pairs_a_head, a_head, num_pairs: kv_heads * pairs_a_head }
    }

    /// Lanes of all panels, each of which is a row of a state.
    pub(super) fn rows(&self) -> usize {
        self.count * SIDE
    }

    /// The panels of a KV head.
    pub(super) fn of_head(&self, head: usize) -> Range<usize> {
        let first = head / self.heads * self.a_head;
        first..first + self.a_head
    }

    /// The row of a pair. Pairs are ordered by KV head.
    pub(super) fn row(&self, pair: usize) -> usize {
        let (head, pair) = (pair / self.pairs_a_head, pair % self.pairs_a_head);
        let lane = head % self.heads * self.lanes + pair % self.lanes;
        (self.of_head(head).start + pair / self.lanes) * SIDE + lane
    }

    /// The pair of a panel's lane, or another one if the lane is unused.
    pub(super) fn pair(&self, panel: usize, lane: usize) -> usize {
        let head = panel / self.a_head * self.heads + lane / self.lanes;
        let pair = panel % self.a_head * self.lanes + lane % self.lanes;
        (head * self.pairs_a_head + pair.min(self.pairs_a_head - 1)).min(self.num_pairs - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_pair_has_a_row_of_its_own(kv_heads in 1..20_usize, pairs_a_head in 1..50_usize) {
            let panels = Panels::with(kv_heads, pairs_a_head);
            let mut rows: Vec<usize> = (0..kv_heads * pairs_a_head).map(|pair| panels.row(pair)).collect();
            for (pair, row) in rows.iter().enumerate() {
                prop_assert_eq!(panels.pair(row / SIDE, row % SIDE), pair);
                prop_assert!(panels.of_head(pair / pairs_a_head).contains(&(row / SIDE)));
            }
            rows.sort_unstable();
            rows.dedup();
            prop_assert_eq!(rows.len(), kv_heads * pairs_a_head);
            prop_assert!(rows.iter().all(|&row| row < panels.rows()));
        }
    }
}
