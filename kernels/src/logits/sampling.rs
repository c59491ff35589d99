//! Sampling: from logits and a uniform number each to token ids. Owns no generator and knows no request.
//!
//! The filters apply in vLLM's order: temperature, min-p, top-k, top-p, each to the result of the one before. The token
//! is the inverse of the cumulative distribution over ascending ids. A row is read once for the greatest logit of each
//! block, once more for the sum of its weights unless top-k makes that needless, and then only where necessary.

mod distribution;
mod weights;

use std::cell::RefCell;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::logits::row::{BLOCK, Row, least_of_greatest};
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range};
use crate::threads::Pool;
use crate::vector::{self, Storage, for_dtype};
use distribution::{Candidate, Limits, choose, first_beyond, limit};
use weights::{LEAST_WEIGHT, Maxima, Scale, Sums, Weights};

/// The result for a row without a possible token.
const NOTHING_LEFT: i32 = -1;

/// Chooses a token per sample, each with a row of logits, parameters and a uniform number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) samples: usize,
    pub(crate) logits: Matrix,
    pub(crate) num_rows: usize,
    pub(crate) vocabulary: usize,
    /// Each sample's row of logits; none: its own.
    pub(crate) rows: Option<Indices>,
    /// None: every sample takes the greatest logit.
    pub(crate) parameters: Option<Parameters>,
    /// int32; -1 if no logit is above minus infinity.
    pub(crate) out: usize,
}

/// Addresses of one number per sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    /// float32; 0: the greatest logit.
    pub(crate) temperature: usize,
    /// int32; 0: off.
    pub(crate) top_k: usize,
    /// float32; 1: off.
    pub(crate) top_p: usize,
    /// float32; 0: off.
    pub(crate) min_p: usize,
    /// float32
    pub(crate) uniforms: usize,
}

#[derive(Default)]
struct Scratch {
    /// The greatest logit of each block.
    maxima: Vec<f32>,
    /// The sum of weights of each block.
    sums: Vec<f32>,
    sorted: Vec<f32>,
    candidates: Vec<Candidate>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The numbers of each sample, by name.
#[derive(FromPyObject)]
pub(crate) struct ParameterArrays {
    #[pyo3(item)]
    temperature: Array,
    #[pyo3(item)]
    top_k: Array,
    #[pyo3(item)]
    top_p: Array,
    #[pyo3(item)]
    min_p: Array,
    #[pyo3(item)]
    uniforms: Array,
}

impl ParameterArrays {
    fn read(&self, samples: usize) -> PyResult<Parameters> {
        let floats = |name, array: &Array| array.elements(name, "float32", &[samples]);
        Ok(Parameters {
            temperature: floats("temperature", &self.temperature)?,
            top_k: self.top_k.elements("top_k", "int32", &[samples])?,
            top_p: floats("top_p", &self.top_p)?,
            min_p: floats("min_p", &self.min_p)?,
            uniforms: floats("uniforms", &self.uniforms)?,
        })
    }

    fn arrays(&self) -> [&Array; 5] {
        [&self.temperature, &self.top_k, &self.top_p, &self.min_p, &self.uniforms]
    }
}

#[pyfunction]
#[pyo3(signature = (logits, rows, parameters, out))]
pub(crate) fn sample(
    py: Python<'_>,
    logits: Array,
    rows: Option<Array>,
    parameters: Option<ParameterArrays>,
    out: Array,
) -> PyResult<()> {
    let shape @ [num_rows, vocabulary] = logits.dimensions("logits")?;
    let samples = out.len();
    if vocabulary == 0 || vocabulary > i32::MAX as usize || (rows.is_none() && num_rows != samples) {
        return Err(PyValueError::new_err(format!(
            "{samples} samples of {num_rows} rows of {vocabulary} logits: give at least one logit, and a row each"
        )));
    }
    let op = Sampling {
        samples,
        logits: logits.matrix("logits", shape)?,
        num_rows,
        vocabulary,
        rows: rows.as_ref().map(|rows| rows.indices("rows", &[samples])).transpose()?,
        parameters: parameters.as_ref().map(|parameters| parameters.read(samples)).transpose()?,
        out: out.elements("out", "int32", &[samples])?,
    };
    let mut arrays = vec![&logits, &out];
    arrays.extend(&rows);
    arrays.extend(parameters.iter().flat_map(ParameterArrays::arrays));
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

impl Op for Sampling {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.samples, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let rows = self.rows.map(|rows| unsafe { rows.first(extent.tokens) });
        if let Some(rows) = rows {
            check_range("row of sample", rows, 0..self.num_rows as i64)?;
        }
        pool.run(extent.tokens, &|sample| {
            let row = rows.map_or(sample, |rows| rows[sample] as usize);
            // SAFETY: as the caller promises; the row was checked, and the sample's place is its own.
            unsafe {
                let token = SCRATCH.with_borrow_mut(
                    |scratch| for_dtype!(self.logits.dtype, L => self.token::<L>(sample, row, isa, scratch)),
                );
                let token = token.map_or(NOTHING_LEFT, |token| token as i32);
                with_exposed_provenance_mut::<i32>(self.out).add(sample).write(token);
            }
        });
        Ok(())
    }
}

impl Sampling {
    /// The chosen token; none if no logit is above minus infinity.
    ///
    /// # Safety
    ///
    /// See `Op::run`; the logits are made of L, and the row and the sample are valid.
    unsafe fn token<L: Storage>(&self, sample: usize, row: usize, isa: Isa, scratch: &mut Scratch) -> Option<usize> {
        let row = Row { logits: self.logits.row::<L>(row).cast_const(), vocabulary: self.vocabulary };
        // SAFETY: as the caller promises.
        unsafe {
            let mut greatest = f32::NEG_INFINITY;
            scratch.maxima.resize(row.num_blocks(), 0.0);
            let maxima = Maxima { row, out: scratch.maxima.as_mut_ptr(), greatest: &raw mut greatest };
            vector::run(isa, &maxima, 0);
            if greatest == f32::NEG_INFINITY {
                return None;
            }
            let number = |address| with_exposed_provenance::<f32>(address).add(sample).read();
            let random = self.parameters.filter(|parameters| number(parameters.temperature) != 0.0);
            // Infinite logits have no weights at any temperature.
            if let Some(parameters) = random.filter(|_| greatest < f32::INFINITY) {
                let scale = Scale::new(greatest, number(parameters.temperature), number(parameters.min_p));
                let top_k = with_exposed_provenance::<i32>(parameters.top_k).add(sample).read().max(0) as usize;
                let limits = Limits { top_k, top_p: number(parameters.top_p).into() };
                return Draw { row, scale, isa }.token(limits, number(parameters.uniforms).into(), scratch);
            }
            let block = scratch.maxima.iter().position(|&most| most >= greatest)?;
            row.ids(block).find(|&id| row.logit(id) >= greatest)
        }
    }
}

/// A row whose weights are known up to their scale.
#[derive(Clone, Copy)]
struct Draw<L> {
    row: Row<L>,
    scale: Scale,
    isa: Isa,
}

impl<L: Storage> Draw<L> {
    /// # Safety
    ///
    /// The row is valid, the machine has the instructions, and the scratch has the maxima of the row's blocks.
    #[expect(clippy::cast_precision_loss, reason = "a vocabulary has fewer than 2^31 tokens")]
    unsafe fn token(self, limits: Limits, uniform: f64, scratch: &mut Scratch) -> Option<usize> {
        let Scratch { maxima, sums, sorted, candidates } = scratch;
        // SAFETY: as the caller promises.
        unsafe {
            if limits.top_k > 0 {
                let least = least_of_greatest(maxima, limits.top_k, sorted);
                self.collect(maxima, least, self.scale.bound(least), candidates);
                limit(candidates, limits, 0.0);
                return choose(candidates, uniform);
            }
            sums.resize(self.row.num_blocks(), 0.0);
            vector::run(self.isa, &Sums { row: self.row, scale: self.scale, out: sums.as_mut_ptr() }, 0);
            let total: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
            if limits.top_p < 1.0 {
                // Tokens below this weight have, all together, less than top-p leaves out, so it keeps none of them.
                let least = 0.999 * (1.0 - limits.top_p) * total / self.row.vocabulary as f64;
                let least = (least as f32).clamp(LEAST_WEIGHT, 0.999);
                self.collect(sums, least, least, candidates);
                limit(candidates, limits, total);
                return choose(candidates, uniform);
            }
            Some(self.choose_from_all(sums, uniform * total))
        }
    }

    /// The first token at which the sum of weights exceeds the target; else the last with any weight.
    ///
    /// # Safety
    ///
    /// See `token`; the sums are of the row's blocks.
    unsafe fn choose_from_all(self, sums: &[f32], target: f64) -> usize {
        let (mut before, mut last) = (0.0, 0);
        for (block, sum) in sums.iter().map(|&sum| f64::from(sum)).enumerate().filter(|&(_, sum)| sum > 0.0) {
            last = block;
            if before + sum > target {
                break;
            }
            before += sum;
        }
        // SAFETY: as the caller promises.
        let weights = unsafe { self.weights(last) }.map(f64::from);
        let place = first_beyond(weights.into_iter(), before, target);
        let heaviest = || weights.iter().rposition(|&weight| weight > 0.0);
        last * BLOCK + place.or_else(heaviest).unwrap_or(0)
    }

    /// Collect all tokens of at least `least_weight`, from the blocks whose figure is at least `least`.
    ///
    /// # Safety
    ///
    /// See `token`; the figures are of the row's blocks.
    unsafe fn collect(self, figures: &[f32], least: f32, least_weight: f32, candidates: &mut Vec<Candidate>) {
        candidates.clear();
        for (block, _) in figures.iter().enumerate().filter(|&(_, &figure)| figure >= least) {
            // SAFETY: as the caller promises.
            let weights = unsafe { self.weights(block) };
            let (start, mut end) = (block * BLOCK, candidates.len());
            // Each is written at the end, and stays if it is wanted: no branch to predict.
            candidates.resize(end + BLOCK, Candidate::default());
            for (id, weight) in (start as u32..).zip(weights) {
                candidates[end] = Candidate { weight, id };
                end += usize::from(weight >= least_weight);
            }
            candidates.truncate(end);
        }
    }

    /// # Safety
    ///
    /// See `token`; the block is valid.
    unsafe fn weights(self, block: usize) -> [f32; BLOCK] {
        let mut weights = [0.0; BLOCK];
        // SAFETY: as the caller promises.
        unsafe {
            vector::run(self.isa, &Weights { row: self.row, scale: self.scale, out: &raw mut weights }, block);
        };
        weights
    }
}

#[cfg(test)]
mod tests;
