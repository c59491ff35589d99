//! Log-probabilities of tokens and of the likeliest ones beside them. Knows neither requests nor sampling.
//!
//! A row is read twice: for the greatest logit of each block and the rank, then for the sum of exponentials.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ptr::with_exposed_provenance_mut;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::logits::row::{Row, greatest, least_of_greatest};
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range};
use crate::threads::Pool;
use crate::vector::{self, Kernel, LANES, Storage, Vector, for_dtype};

/// For each sample, the log-probability and rank of its token, and the likeliest tokens with theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logprobs {
    pub(crate) samples: usize,
    pub(crate) logits: Matrix,
    pub(crate) num_rows: usize,
    pub(crate) vocabulary: usize,
    /// Each sample's row of logits.
    pub(crate) rows: Indices,
    /// Each sample's token.
    pub(crate) chosen: Indices,
    /// At most the vocabulary.
    pub(crate) num_top: usize,
    /// int32 [samples, 1 + `num_top`]
    pub(crate) ids: usize,
    /// float32 [samples, 1 + `num_top`]
    pub(crate) values: usize,
    /// int32 [samples]
    pub(crate) ranks: usize,
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn logprobs(
    py: Python<'_>,
    logits: Array,
    rows: Array,
    chosen: Array,
    num_top: usize,
    ids: Array,
    values: Array,
    ranks: Array,
) -> PyResult<()> {
    let shape @ [num_rows, vocabulary] = logits.dimensions("logits")?;
    if vocabulary > i32::MAX as usize || num_top > vocabulary {
        return Err(PyValueError::new_err(format!(
            "the {num_top} likeliest of {vocabulary} tokens: ask for that many at most"
        )));
    }
    let samples = rows.len();
    let of_tokens = [samples, 1 + num_top];
    let op = Logprobs {
        samples,
        logits: logits.matrix("logits", shape)?,
        num_rows,
        vocabulary,
        rows: rows.indices("rows", &[samples])?,
        chosen: chosen.indices("chosen", &[samples])?,
        num_top,
        ids: ids.elements("ids", "int32", &of_tokens)?,
        values: values.elements("values", "float32", &of_tokens)?,
        ranks: ranks.elements("ranks", "int32", &[samples])?,
    };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&logits, &rows, &chosen, &ids, &values, &ranks]) }
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    logit: f32,
    id: usize,
}

#[derive(Default)]
struct Scratch {
    maxima: Vec<f32>,
    sorted: Vec<f32>,
    candidates: Vec<Candidate>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Op for Logprobs {
    fn name(&self) -> &'static str {
        "logprobs"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.samples, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let (rows, chosen) = unsafe { (self.rows.first(extent.tokens), self.chosen.first(extent.tokens)) };
        check_range("row of sample", rows, 0..self.num_rows as i64)?;
        check_range("token of sample", chosen, 0..self.vocabulary as i64)?;
        pool.run(extent.tokens, &|sample| {
            let (row, token) = (rows[sample] as usize, chosen[sample] as usize);
            SCRATCH.with_borrow_mut(|scratch| {
                // SAFETY: as the caller promises; row and token were checked, and the sample's places are its own.
                unsafe { for_dtype!(self.logits.dtype, L => self.tell::<L>(sample, row, token, isa, scratch)) }
            });
        });
        Ok(())
    }
}

impl Logprobs {
    /// # Safety
    ///
    /// See `Op::run`; the logits are made of L, and the row, the token and the sample are valid.
    unsafe fn tell<L: Storage>(&self, sample: usize, row: usize, token: usize, isa: Isa, scratch: &mut Scratch) {
        let row = Row { logits: self.logits.row::<L>(row).cast_const(), vocabulary: self.vocabulary };
        // SAFETY: as the caller promises.
        unsafe {
            let chosen = row.logit(token);
            scratch.maxima.resize(row.num_blocks(), 0.0);
            let mut found = Measured::default();
            let measure = Measure { row, chosen, maxima: scratch.maxima.as_mut_ptr(), found: &raw mut found };
            vector::run(isa, &measure, 0);
            self.likeliest(row, scratch);
            let columns = 1 + self.num_top;
            let ids = with_exposed_provenance_mut::<i32>(self.ids).add(sample * columns);
            let values = with_exposed_provenance_mut::<f32>(self.values).add(sample * columns);
            let first = Candidate { logit: chosen, id: token };
            for (place, candidate) in [first].iter().chain(&scratch.candidates).enumerate() {
                ids.add(place).write(candidate.id as i32);
                values.add(place).write(found.log_probability(candidate.logit));
            }
            with_exposed_provenance_mut::<i32>(self.ranks).add(sample).write(found.rank as i32);
        }
    }

    /// Leave the first `num_top` candidates, best first.
    ///
    /// # Safety
    ///
    /// The row is valid, and the maxima are its blocks'.
    unsafe fn likeliest<L: Storage>(&self, row: Row<L>, scratch: &mut Scratch) {
        let Scratch { maxima, sorted, candidates } = scratch;
        candidates.clear();
        let Some(worst) = self.num_top.checked_sub(1) else {
            return;
        };
        let least = least_of_greatest(maxima, self.num_top, sorted);
        for (block, _) in maxima.iter().enumerate().filter(|&(_, &most)| most >= least) {
            for id in row.ids(block) {
                // SAFETY: as the caller promises.
                let logit = unsafe { row.logit(id) };
                if logit >= least {
                    candidates.push(Candidate { logit, id });
                }
            }
        }
        if candidates.len() > self.num_top {
            candidates.select_nth_unstable_by(worst, best_first);
            candidates.truncate(self.num_top);
        }
        candidates.sort_unstable_by(best_first);
    }
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    greatest: f32,
    /// The sum of exponentials, in units of the greatest.
    sum: f64,
    rank: u32,
}

impl Measured {
    fn log_probability(self, logit: f32) -> f32 {
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        (f64::from(logit) - f64::from(self.greatest) - self.sum.ln()) as f32
    }
}

struct Measure<L> {
    row: Row<L>,
    chosen: f32,
    /// The greatest logit of each block.
    maxima: *mut f32,
    found: *mut Measured,
}

// SAFETY: a thread makes these for itself.
unsafe impl<L> Sync for Measure<L> {}

impl<L: Storage> Kernel for Measure<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let (row, chosen) = (self.row, V::splat(self.chosen));
            let (mut most, mut rank) = (f32::NEG_INFINITY, 0);
            for block in 0..row.num_blocks() {
                let vectors = row.block::<V>(block);
                for (index, vector) in vectors.into_iter().enumerate() {
                    let left = row.ids(block).len().saturating_sub(index * LANES).min(LANES);
                    rank += (vector.lanes_at_least(chosen) & ((1 << left) - 1)).count_ones();
                }
                let greatest = greatest(vectors);
                self.maxima.add(block).write(greatest);
                most = most.max(greatest);
            }
            // A block's exponentials are summed in float32, the blocks' sums in float64.
            let (units, mut sum) = (V::splat(most), 0.0);
            for block in 0..row.num_blocks() {
                let [a, b, c, d] = row.block::<V>(block).map(|logits| logits.sub(units).exp());
                sum += f64::from(a.add(b).add(c.add(d)).sum());
            }
            self.found.write(Measured { greatest: most, sum, rank });
        }
    }
}

#[cfg(test)]
mod tests;
