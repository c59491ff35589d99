//! The experts of each token, and the rows of each expert. Computes no product.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::arrays::Array;
use crate::linear::{GROUP_ROWS, RowGroup};
use crate::op::Matrix;
use crate::vector::{Storage, for_dtype};

/// Keeps the sum of weights that are all 0 from dividing them.
const LEAST_SUM: f32 = 1e-20;

/// A router: its weights are scores of the `active` best experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Router {
    pub(crate) num_experts: usize,
    pub(crate) active: usize,
    pub(crate) scores: Scores,
    /// Whether the chosen weights are scaled to add up to 1.
    pub(crate) normalised: bool,
    /// Multiplies the weights.
    pub(crate) factor: f32,
    /// Whether the weights multiply the inputs of the experts, not their outputs.
    pub(crate) weighs_inputs: bool,
    /// Added to the scores for the choice alone: the address of a float32 for each expert.
    pub(crate) correction: Option<usize>,
    /// Multiplies the weight of each expert: the address of a float32 for each.
    pub(crate) expert_factors: Option<usize>,
    pub(crate) groups: Option<Groups>,
    /// The first of this rank's `count` experts.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// The function from logits to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scores {
    Softmax,
    Sigmoid,
    /// The softmax over the experts that are not chosen yet, and whose logits differ from the largest of them by at most
    /// this part of the larger magnitude.
    SparseMixer {
        tolerance: f32,
    },
}

/// `count` groups of equal size; only experts of the `active` best are chosen. A group's score is the sum of its `best`
/// largest.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub(crate) struct Groups {
    pub(crate) count: usize,
    pub(crate) active: usize,
    pub(crate) best: usize,
}

/// A `Router` of Python.
#[derive(FromPyObject)]
pub(crate) struct RouterArrays {
    num_experts: usize,
    active: usize,
    scores: PyBackedStr,
    tolerance: f32,
    normalised: bool,
    factor: f32,
    weighs_inputs: bool,
    pub(crate) correction: Option<Array>,
    pub(crate) expert_factors: Option<Array>,
    groups: Option<Groups>,
    first: usize,
    count: usize,
}

impl RouterArrays {
    /// The router, checked.
    pub(crate) fn router(&self) -> PyResult<Router> {
        let Self { num_experts, active, normalised, factor, weighs_inputs, groups, first, count, .. } = *self;
        if active == 0 || active > num_experts || count == 0 || first + count > num_experts {
            return Err(PyValueError::new_err(format!(
                "{active} of {num_experts} experts, of which those from {first} on, {count} in number, are here"
            )));
        }
        if let Some(Groups { count, active: active_groups, best }) = groups {
            let size = num_experts.checked_div(count).unwrap_or(0);
            let is_even = size * count == num_experts && (1..=size).contains(&best);
            if !is_even || active_groups > count || active_groups * size < active {
                return Err(PyValueError::new_err(format!(
                    "{active} experts in {active_groups} of {count} groups, scored by their {best} best, do not fit \
                     {num_experts} experts"
                )));
            }
        }
        let scores = match &*self.scores {
            "softmax" => Scores::Softmax,
            "sigmoid" => Scores::Sigmoid,
            "sparse_mixer" => Scores::SparseMixer { tolerance: self.tolerance },
            name => {
                let text = format!("no scores {name:?}: use softmax, sigmoid or sparse_mixer");
                return Err(PyValueError::new_err(text));
            }
        };
        let is_mixed = matches!(scores, Scores::SparseMixer { .. });
        if is_mixed && (normalised || self.correction.is_some() || self.expert_factors.is_some() || groups.is_some()) {
            let text = "a sparse mixer has neither normalised weights, nor a correction, nor factors, nor groups";
            return Err(PyValueError::new_err(text));
        }
        let of_experts = |name, numbers: &Option<Array>| {
            numbers.as_ref().map(|numbers| numbers.elements(name, "float32", &[num_experts])).transpose()
        };
        Ok(Router {
            num_experts,
            active,
            scores,
            normalised,
            factor,
            weighs_inputs,
            correction: of_experts("correction", &self.correction)?,
            expert_factors: of_experts("expert_factors", &self.expert_factors)?,
            groups,
            first,
            count,
        })
    }
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
    /// See `Router`.
    pub(super) weighs_inputs: bool,
    first_expert: usize,
    pub(super) pairs: Vec<Pair>,
    pub(super) groups: Vec<RowGroup>,
    /// Rows up to the end of the last group.
    pub(super) num_rows: usize,
}

impl Routes {
    /// # Safety
    ///
    /// `num_tokens` rows of logits are valid, and so are the router's correction and factors.
    pub(super) unsafe fn of(router: &Router, logits: Matrix, num_tokens: usize) -> Self {
        let mut pairs = Vec::with_capacity(num_tokens * router.active);
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(logits.dtype, L => router.choose_each::<L>(logits, num_tokens, &mut pairs)) }
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
        let Router { active, weighs_inputs, first, .. } = *router;
        Self { active, weighs_inputs, first_expert: first, pairs, groups, num_rows }
    }

    /// Index of a pair's expert among this rank's matrices, if the pair has a row.
    pub(super) fn matrix_of(&self, pair: &Pair) -> usize {
        pair.expert as usize - self.first_expert
    }
}

/// Memory for the choice of a token's experts.
#[derive(Default)]
struct Memory {
    logits: Vec<f32>,
    /// The numbers that are compared: scores with their correction.
    keys: Vec<f32>,
    order: Vec<u32>,
    group: Vec<f32>,
    group_keys: Vec<f32>,
    group_order: Vec<u32>,
}

impl Router {
    /// # Safety
    ///
    /// See `Routes::of`; the logits are made of L.
    unsafe fn choose_each<L: Storage>(&self, logits: Matrix, num_tokens: usize, pairs: &mut Vec<Pair>) {
        // SAFETY: as the caller promises.
        let [correction, factors] = [self.correction, self.expert_factors].map(|numbers| {
            numbers.map(|address| unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<f32>(address), self.num_experts)
            })
        });
        let mut memory = Memory::default();
        for token in 0..num_tokens {
            // SAFETY: as the caller promises.
            let row = unsafe { std::slice::from_raw_parts(logits.row::<L>(token), self.num_experts) };
            memory.logits.clear();
            memory.logits.extend(row.iter().map(|&logit| logit.widen()));
            match self.scores {
                Scores::SparseMixer { tolerance } => self.mix(tolerance, &mut memory, pairs),
                Scores::Softmax | Scores::Sigmoid => self.choose(correction, factors, &mut memory, pairs),
            }
        }
    }

    /// Choose the best experts, in the order of the experts. Of equal ones, the first win.
    fn choose(&self, correction: Option<&[f32]>, factors: Option<&[f32]>, memory: &mut Memory, pairs: &mut Vec<Pair>) {
        let Memory { logits, keys, order, .. } = memory;
        order.clear();
        order.extend(0..logits.len() as u32);
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let is_sigmoid = self.scores == Scores::Sigmoid;
        let score = |logit: f32| if is_sigmoid { 1.0 / (1.0 + (-logit).exp()) } else { (logit - greatest).exp() };
        let sum_of_all = || if is_sigmoid { 1.0 } else { logits.iter().copied().map(score).sum() };
        if correction.is_none() && self.groups.is_none() {
            keep_largest(logits, order, self.active); // Scores have the order of the logits.
        } else {
            let sum: f32 = sum_of_all();
            keys.clear();
            keys.extend(logits.iter().map(|&logit| score(logit) / sum));
            for (key, &bias) in keys.iter_mut().zip(correction.unwrap_or_default()) {
                *key += bias;
            }
            if let Some(groups) = self.groups {
                groups.keep_best(keys, order, &mut memory.group, &mut memory.group_keys, &mut memory.group_order);
            }
            keep_largest(keys, order, self.active);
        }
        order.sort_unstable();
        let sum: f32 = if self.normalised {
            order.iter().map(|&expert| score(logits[expert as usize])).sum::<f32>() + LEAST_SUM
        } else {
            sum_of_all()
        };
        pairs.extend(order.iter().map(|&expert| {
            let own = factors.map_or(1.0, |factors| factors[expert as usize]);
            let weight = score(logits[expert as usize]) / sum * self.factor * own;
            Pair { expert, weight, row: None }
        }));
    }

    /// Choose one expert after the other, by `Scores::SparseMixer`.
    fn mix(&self, tolerance: f32, memory: &mut Memory, pairs: &mut Vec<Pair>) {
        let Memory { logits, order, .. } = memory;
        order.clear();
        order.extend(0..logits.len() as u32);
        let start = pairs.len();
        for _ in 0..self.active {
            let mut best = 0;
            for (place, &expert) in order.iter().enumerate() {
                if logits[expert as usize].total_cmp(&logits[order[best] as usize]).is_gt() {
                    best = place;
                }
            }
            let largest = logits[order[best] as usize];
            let rest = order.iter().map(|&expert| logits[expert as usize]);
            let is_far = |logit: f32| (largest - logit) / logit.abs().max(largest) > tolerance;
            let sum: f32 = rest.filter(|&logit| !is_far(logit)).map(|logit| (logit - largest).exp()).sum();
            pairs.push(Pair { expert: order.remove(best), weight: self.factor / sum, row: None });
        }
        pairs[start..].sort_unstable_by_key(|pair| pair.expert);
    }
}

impl Groups {
    /// Keep the experts of the best groups.
    fn keep_best(
        self,
        keys: &[f32],
        order: &mut Vec<u32>,
        group: &mut Vec<f32>,
        group_keys: &mut Vec<f32>,
        group_order: &mut Vec<u32>,
    ) {
        let size = keys.len() / self.count;
        group_keys.clear();
        group_keys.extend(keys.chunks_exact(size).map(|keys| {
            group.clear();
            group.extend_from_slice(keys);
            group.select_nth_unstable_by(self.best - 1, |one, other| other.total_cmp(one));
            group[..self.best].iter().sum::<f32>()
        }));
        group_order.clear();
        group_order.extend(0..self.count as u32);
        keep_largest(group_keys, group_order, self.active);
        order.retain(|&expert| group_order.contains(&(expert / size as u32)));
    }
}

/// Keep the `count` indices with the largest keys, in any order; of equal keys, the first.
fn keep_largest(keys: &[f32], indices: &mut Vec<u32>, count: usize) {
    if count < indices.len() {
        indices.select_nth_unstable_by(count - 1, |&one, &other| {
            keys[other as usize].total_cmp(&keys[one as usize]).then(one.cmp(&other))
        });
        indices.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const ROUTER: Router = Router {
        num_experts: 4,
        active: 2,
        scores: Scores::Softmax,
        normalised: true,
        factor: 1.0,
        weighs_inputs: false,
        correction: None,
        expert_factors: None,
        groups: None,
        first: 0,
        count: 4,
    };

    fn weights(router: &Router, logits: &[f32]) -> Vec<(u32, f32)> {
        routes(router, logits).pairs.iter().map(|pair| (pair.expert, pair.weight)).collect()
    }

    fn routes(router: &Router, logits: &[f32]) -> Routes {
        let address = logits.as_ptr().expose_provenance();
        let matrix = Matrix { dtype: DType::Float32, address, stride: router.num_experts };
        // SAFETY: the logits are there.
        unsafe { Routes::of(router, matrix, logits.len() / router.num_experts) }
    }

    #[test]
    fn a_token_takes_the_experts_with_the_largest_scores_in_their_order() {
        let router = Router { active: 2, normalised: true, first: 0, count: 4, ..ROUTER };
        let found = routes(&router, &[0.0, 2.0, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0]);
        let chosen: Vec<_> = found.pairs.iter().map(|pair| (pair.expert, pair.weight, pair.row)).collect();
        assert_eq!(chosen, [(1, 0.5, Some(16)), (3, 0.5, Some(32)), (0, 0.5, Some(0)), (1, 0.5, Some(17))]);
        let groups: Vec<_> = found.groups.iter().map(|group| (group.rows.clone(), group.matrix)).collect();
        assert_eq!((groups, found.num_rows), (vec![(0..1, 0), (16..18, 1), (32..33, 3)], 33));
    }

    #[test]
    fn without_normalising_the_weights_are_shares_of_all_experts() {
        let router = Router { active: 1, normalised: false, first: 0, count: 4, ..ROUTER };
        let found = routes(&router, &[1.0; 4]);
        assert_eq!((found.pairs[0].expert, found.pairs[0].weight), (0, 0.25));
    }

    #[test]
    fn a_correction_takes_part_in_the_choice_alone() {
        let correction = [0.0_f32, 0.0, 0.5, 0.4];
        let router = Router {
            scores: Scores::Sigmoid,
            factor: 2.0,
            correction: Some(correction.as_ptr().expose_provenance()),
            ..ROUTER
        };
        assert_eq!(weights(&router, &[0.3, 0.2, 0.0, 0.0]), [(2, 1.0), (3, 1.0)]);
        let router = Router { normalised: false, scores: Scores::Softmax, factor: 4.0, ..router };
        assert_eq!(weights(&router, &[0.0; 4]), [(2, 1.0), (3, 1.0)]);
    }

    #[test]
    fn only_experts_of_the_best_groups_are_chosen() {
        let groups = |best| Some(Groups { count: 2, active: 1, best });
        let chosen = |best, logits: &[f32]| {
            weights(&Router { groups: groups(best), scores: Scores::Sigmoid, ..ROUTER }, logits)
                .into_iter()
                .map(|(expert, _)| expert)
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(1, &[3.0, -9.0, 1.0, 1.0]), [0, 1]);
        assert_eq!(chosen(2, &[3.0, -9.0, 1.0, 1.0]), [2, 3]);
    }

    #[test]
    fn a_sparse_mixer_weighs_each_expert_against_those_near_it_that_are_left() {
        let router = Router { scores: Scores::SparseMixer { tolerance: 0.25 }, normalised: false, ..ROUTER };
        let found = weights(&router, &[1.0, 4.0, 3.0, 2.5]);
        let near = |distance: f32| 1.0 / (1.0 + distance.exp());
        assert_eq!(found.iter().map(|&(expert, _)| expert).collect::<Vec<_>>(), [1, 2]);
        assert!(found.iter().zip([near(-1.0), near(-0.5)]).all(|(pair, weight)| (pair.1 - weight).abs() < 1e-6));
    }

    #[test]
    fn weights_of_zero_are_not_divided_by_their_sum() {
        let router = Router { scores: Scores::Sigmoid, ..ROUTER };
        assert_eq!(weights(&router, &[-200.0; 4]), [(0, 0.0), (1, 0.0)]);
    }

    #[test]
    fn a_rank_has_rows_for_its_own_experts_alone() {
        let router = Router { active: 2, normalised: true, first: 2, count: 2, ..ROUTER };
        let found = routes(&router, &[9.0, 0.0, 9.0, 0.0]);
        assert_eq!(
            found.pairs.iter().map(|pair| (pair.expert, pair.row)).collect::<Vec<_>>(),
            [(0, None), (2, Some(0))]
        );
        assert_eq!(found.groups.len(), 1);
    }
}
