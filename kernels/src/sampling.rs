//! From logits and a uniform number each to token ids. Owns no generator and knows no request.
//!
//! The filters apply in vLLM's order: temperature, min-p, top-k, top-p, each on what the one before has left. The token is
//! the inverse of the cumulative distribution over ascending ids.
#![expect(clippy::inline_always, reason = "see `Vector`")]

mod distribution;

use std::cell::RefCell;
use std::ptr::with_exposed_provenance;

use crate::isa::Isa;
use crate::linear::Element;
use crate::op::{Extent, Indices, Op, OutOfRange, Rows, check_range};
use crate::threads::Pool;
use crate::vector::{self, Bfloat16, Kernel, LANES, Storage, Vector};
use distribution::{Limits, choose};

/// Logits of which the greatest is found before its place is.
const BLOCK: usize = 1024;

/// One token a sample, which has a row of logits, parameters and a uniform number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) samples: usize,
    pub(crate) logits: Rows,
    pub(crate) num_rows: usize,
    pub(crate) vocabulary: usize,
    /// Each sample's row of logits; none: its own.
    pub(crate) rows: Option<Indices>,
    /// None: every sample takes the greatest logit.
    pub(crate) parameters: Option<Parameters>,
    /// int32
    pub(crate) out: usize,
}

/// Addresses of one number a sample.
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

thread_local! {
    static WEIGHTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Op for Sampling {
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
                let token = match self.logits.element {
                    Element::Float32 => self.token::<f32>(sample, row, isa),
                    Element::Bfloat16 => self.token::<Bfloat16>(sample, row, isa),
                };
                std::ptr::with_exposed_provenance_mut::<i32>(self.out).add(sample).write(token as i32);
            }
        });
        Ok(())
    }
}

impl Sampling {
    /// # Safety
    ///
    /// As for `Op::run`; the logits are made of L, and the row and the sample are there.
    unsafe fn token<L: Storage>(&self, sample: usize, row: usize, isa: Isa) -> usize {
        let logits = self.logits.row::<L>(row).cast_const();
        let mut greatest = (f32::NEG_INFINITY, 0);
        let find = Greatest { logits, vocabulary: self.vocabulary, found: &raw mut greatest };
        // SAFETY: as the caller promises.
        unsafe {
            vector::run(isa, &find, 0);
            let Some(parameters) = self.parameters else {
                return greatest.1;
            };
            let number = |address| with_exposed_provenance::<f32>(address).add(sample).read();
            let temperature = number(parameters.temperature);
            if temperature == 0.0 {
                return greatest.1;
            }
            let limits = Limits {
                top_k: with_exposed_provenance::<i32>(parameters.top_k).add(sample).read().max(0) as usize,
                top_p: number(parameters.top_p).into(),
            };
            WEIGHTS.with_borrow_mut(|weights| {
                weights.resize(self.vocabulary, 0.0);
                let weigh = Weigh {
                    logits,
                    greatest: greatest.0,
                    temperature,
                    min_p: number(parameters.min_p),
                    weights: weights.as_mut_ptr(),
                    vocabulary: self.vocabulary,
                };
                vector::run(isa, &weigh, 0);
                choose(weights, limits, number(parameters.uniforms).into())
            })
        }
    }
}

/// The greatest logit and the first place where it stands; those that are not a number do not count.
struct Greatest<L> {
    logits: *const L,
    vocabulary: usize,
    /// Minus infinity and the first place, where no logit is a number.
    found: *mut (f32, usize),
}

/// Probabilities in units of the greatest; those below min-p are zero.
struct Weigh<L> {
    logits: *const L,
    greatest: f32,
    temperature: f32,
    min_p: f32,
    weights: *mut f32,
    vocabulary: usize,
}

// SAFETY: a thread makes these for itself.
unsafe impl<L> Sync for Greatest<L> {}
// SAFETY: as above.
unsafe impl<L> Sync for Weigh<L> {}

impl<L: Storage> Kernel for Greatest<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let lowest = V::splat(f32::NEG_INFINITY);
            let (mut greatest, mut block) = (f32::NEG_INFINITY, 0);
            for start in (0..self.vocabulary).step_by(BLOCK) {
                let mut maxima = [lowest; 4];
                for first in (start..self.vocabulary.min(start + BLOCK)).step_by(4 * LANES) {
                    for (index, maxima) in maxima.iter_mut().enumerate() {
                        let at = first + index * LANES;
                        if at < self.vocabulary {
                            *maxima = self.logits::<V>(at).max(*maxima);
                        }
                    }
                }
                let most = maxima[0].max(maxima[1]).max(maxima[2].max(maxima[3])).greatest();
                if most > greatest {
                    (greatest, block) = (most, start);
                }
            }
            let mut numbers = [0.0; LANES];
            for at in (block..self.vocabulary.min(block + BLOCK)).step_by(LANES) {
                self.logits::<V>(at).store(numbers.as_mut_ptr());
                let count = LANES.min(self.vocabulary - at);
                if let Some(lane) = numbers[..count].iter().position(|&number| number >= greatest) {
                    *self.found = (greatest, at + lane);
                    return;
                }
            }
        }
    }
}

impl<L: Storage> Greatest<L> {
    /// Some logits, and as many of the lowest number as are missing at the end.
    ///
    /// # Safety
    ///
    /// As for `Kernel::run`.
    #[inline(always)]
    unsafe fn logits<V: Vector>(&self, at: usize) -> V {
        let left = self.vocabulary - at;
        // SAFETY: as the caller promises.
        unsafe { L::load_up_to::<V>(self.logits.add(at), left).first(left.min(LANES), V::splat(f32::NEG_INFINITY)) }
    }
}

impl<L: Storage> Kernel for Weigh<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let (greatest, temperature) = (V::splat(self.greatest), V::splat(self.temperature));
            let least = V::splat(self.min_p.max(LEAST_WEIGHT));
            for at in (0..self.vocabulary).step_by(LANES) {
                let left = self.vocabulary - at;
                let logits: V = L::load_up_to(self.logits.add(at), left);
                // The greatest first, which keeps every temperature, however small, from overflowing.
                let weights = logits.sub(greatest).div(temperature).exp().at_least(least);
                f32::store_up_to(weights, self.weights.add(at), left);
            }
        }
    }
}

/// More than the exponential of what is too low for it.
const LEAST_WEIGHT: f32 = 2e-38;

#[cfg(test)]
mod tests;
