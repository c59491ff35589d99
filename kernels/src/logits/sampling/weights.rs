//! Weights of a row of logits, block by block: probabilities in units of the greatest, after temperature and min-p.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use crate::logits::row::{BLOCK, Row, greatest};
use crate::vector::{Kernel, LANES, Storage, Vector};

/// Above the exponentials of all arguments that are too low for it.
pub(super) const LEAST_WEIGHT: f32 = 2e-38;

/// The parameters that turn logits into weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    greatest: f32,
    inverse_temperature: f32,
    /// Smaller weights become zero.
    least: f32,
}

impl Scale {
    /// The greatest logit must be finite, and the temperature above 0.
    pub(super) fn new(greatest: f32, temperature: f32, min_p: f32) -> Self {
        // Limited for tiny temperatures: infinity times the difference of equal logits would be NaN.
        let inverse_temperature = temperature.recip().min(f32::MAX);
        Self { greatest, inverse_temperature, least: min_p.clamp(LEAST_WEIGHT, 1.0) }
    }

    /// A lower bound of the weights of this logit and greater ones.
    pub(super) fn bound(self, logit: f32) -> f32 {
        // The vectors' exponential is precise to a few units in the last place.
        let weight = ((logit - self.greatest) * self.inverse_temperature).exp() * (1.0 - 1e-6);
        weight.max(self.least)
    }

    /// Subtracts the greatest first, so that no temperature, however small, overflows.
    #[inline(always)]
    fn weights<V: Vector>(self, logits: V) -> V {
        // SAFETY: `logits` exist.
        let constant = |number| unsafe { V::splat(number) };
        let exponents = logits.sub(constant(self.greatest)).mul(constant(self.inverse_temperature));
        exponents.exp().at_least(constant(self.least))
    }
}

/// The greatest logit of each block, and of all; minus infinity if all are NaN.
pub(super) struct Maxima<L> {
    pub(super) row: Row<L>,
    pub(super) out: *mut f32,
    pub(super) greatest: *mut f32,
}

/// The sum of the weights of each block.
pub(super) struct Sums<L> {
    pub(super) row: Row<L>,
    pub(super) scale: Scale,
    pub(super) out: *mut f32,
}

/// The weights of one block; zeros where there are no logits.
pub(super) struct Weights<L> {
    pub(super) row: Row<L>,
    pub(super) scale: Scale,
    pub(super) out: *mut [f32; BLOCK],
}

// SAFETY: a thread makes these for itself.
unsafe impl<L> Sync for Maxima<L> {}
// SAFETY: as above.
unsafe impl<L> Sync for Sums<L> {}
// SAFETY: as above.
unsafe impl<L> Sync for Weights<L> {}

impl<L: Storage> Kernel for Maxima<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut most = f32::NEG_INFINITY;
            for block in 0..self.row.num_blocks() {
                let greatest = greatest(self.row.block::<V>(block));
                self.out.add(block).write(greatest);
                most = most.max(greatest);
            }
            self.greatest.write(most);
        }
    }
}

impl<L: Storage> Kernel for Sums<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            for block in 0..self.row.num_blocks() {
                let [a, b, c, d] = self.row.block::<V>(block).map(|logits| self.scale.weights(logits));
                self.out.add(block).write(a.add(b).add(c.add(d)).sum());
            }
        }
    }
}

impl<L: Storage> Kernel for Weights<L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, block: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            for (index, logits) in self.row.block::<V>(block).into_iter().enumerate() {
                self.scale.weights(logits).store(self.out.cast::<f32>().add(index * LANES));
            }
        }
    }
}
