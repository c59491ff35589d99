//! The experts of each token, and the rows of each expert. Computes no product.

use pyo3::FromPyObject;

use crate::linear::{GROUP_ROWS, RowGroup};
use crate::op::Matrix;
use crate::vector::Storage;

/// A router: its weights are the `active` largest of a softmax over all experts.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub(crate) struct Router {
    pub(crate) num_experts: usize,
    pub(crate) active: usize,
    /// Whether the chosen weights are scaled to add up to 1.
    pub(crate) normalised: bool,
    /// The first of this rank's `count` experts.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// A token and one of its experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pair {
    expert: u32,
    pub(super) weight: f32,
    /// None: the expert is another rank's.
    pub(super) row: Option<u32>,
}

/// The pairs of each token one after the other, by expert, and the row groups of experts that have any.
pub(super) struct Routes {
    pub(super) active: usize,
    first_expert: usize,
    pub(super) pairs: Vec<Pair>,
    pub(super) groups: Vec<RowGroup>,
    /// Rows up to the end of the last group.
    pub(super) num_rows: usize,
}

impl Routes {
    /// # Safety
    ///
    /// `num_tokens` rows of logits are valid, with elements of X.
    pub(super) unsafe fn of<X: Storage>(router: &Router, logits: Matrix, num_tokens: usize) -> Self {
        let mut pairs = Vec::with_capacity(num_tokens * router.active);
        let mut scores = vec![0.0; router.num_experts];
        let mut order: Vec<u32> = Vec::with_capacity(router.num_experts);
        for token in 0..num_tokens {
            // SAFETY: as the caller promises.
            let row = unsafe { std::slice::from_raw_parts(logits.row::<X>(token), router.num_experts) };
            scores.iter_mut().zip(row).for_each(|(score, &logit)| *score = logit.widen());
            router.choose(&scores, &mut order, &mut pairs);
        }
        let mut counts = vec![0_u32; router.count];
        for pair in &mut pairs {
            let local = (pair.expert as usize).checked_sub(router.first).filter(|&local| local < router.count);
            pair.row = local.map(|local| {
                counts[local] += 1;
                counts[local] - 1 // within its group, until groups have their places
            });
        }
        let (mut groups, mut firsts, mut end) = (Vec::new(), vec![0; router.count], 0);
        for (matrix, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            firsts[matrix] = end;
            groups.push(RowGroup { rows: end..end + count as usize, matrix });
            end = (end + count as usize).next_multiple_of(GROUP_ROWS);
        }
        for pair in &mut pairs {
            if let Some(row) = &mut pair.row {
                *row += firsts[pair.expert as usize - router.first] as u32;
            }
        }
        let num_rows = groups.last().map_or(0, |group| group.rows.end);
        Self { active: router.active, first_expert: router.first, pairs, groups, num_rows }
    }

    /// Index of a pair's expert among this rank's matrices, if the pair has a row.
    pub(super) fn matrix_of(&self, pair: &Pair) -> usize {
        pair.expert as usize - self.first_expert
    }
}

impl Router {
    /// Choose the largest scores, in the order of the experts. Of equal scores, the first experts win.
    fn choose(&self, scores: &[f32], order: &mut Vec<u32>, pairs: &mut Vec<Pair>) {
        order.clear();
        order.extend(0..scores.len() as u32);
        let by_score =
            |&one: &u32, &other: &u32| scores[other as usize].total_cmp(&scores[one as usize]).then(one.cmp(&other));
        if self.active < order.len() {
            order.select_nth_unstable_by(self.active - 1, by_score);
            order.truncate(self.active);
        }
        order.sort_unstable();
        let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |score: f32| (score - greatest).exp();
        let total: f32 = if self.normalised {
            order.iter().map(|&expert| weight(scores[expert as usize])).sum()
        } else {
            scores.iter().copied().map(weight).sum()
        };
        pairs.extend(order.iter().map(|&expert| {
            let weight = weight(scores[expert as usize]) / total;
            Pair { expert, weight, row: None }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn routes(router: &Router, logits: &[f32]) -> Routes {
        let address = logits.as_ptr().expose_provenance();
        let matrix = Matrix { dtype: DType::Float32, address, stride: router.num_experts };
        // SAFETY: the logits are there.
        unsafe { Routes::of::<f32>(router, matrix, logits.len() / router.num_experts) }
    }

    #[test]
    fn a_token_takes_the_experts_with_the_largest_scores_in_their_order() {
        let router = Router { num_experts: 4, active: 2, normalised: true, first: 0, count: 4 };
        let found = routes(&router, &[0.0, 2.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0]);
        let chosen: Vec<_> = found.pairs.iter().map(|pair| (pair.expert, pair.weight, pair.row)).collect();
        assert_eq!(chosen, [(1, 0.5, Some(16)), (3, 0.5, Some(32)), (0, 0.5, Some(0)), (1, 0.5, Some(17))]);
        let groups: Vec<_> = found.groups.iter().map(|group| (group.rows.clone(), group.matrix)).collect();
        assert_eq!((groups, found.num_rows), (vec![(0..1, 0), (16..18, 1), (32..33, 3)], 33));
    }

    #[test]
    fn without_normalising_the_weights_are_shares_of_all_experts() {
        let router = Router { num_experts: 4, active: 1, normalised: false, first: 0, count: 4 };
        let found = routes(&router, &[1.0; 4]);
        assert_eq!((found.pairs[0].expert, found.pairs[0].weight), (0, 0.25));
    }

    #[test]
    fn a_rank_has_rows_for_its_own_experts_alone() {
        let router = Router { num_experts: 4, active: 2, normalised: true, first: 2, count: 2 };
        let found = routes(&router, &[9.0, 0.0, 9.0, 0.0]);
        assert_eq!(
            found.pairs.iter().map(|pair| (pair.expert, pair.row)).collect::<Vec<_>>(),
            [(0, None), (2, Some(0))]
        );
        assert_eq!(found.groups.len(), 1);
    }
}
