//! Root mean square normalisation (arXiv 1910.07467), alone or after the addition to the residual stream.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use crate::isa::Isa;
use crate::linear::Element;
use crate::op::{Extent, Op, OutOfRange, Rows, run_rows};
use crate::threads::Pool;
use crate::vector::{Bfloat16, Kernel, LANES, Storage, Vector};

/// Sums that are kept apart, so that one addition need not wait for another.
const SUMS: usize = 4;

/// `out = normalised(x) * weight`; with a stream, `stream.sum = x + stream.residual`, and that is normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmsNorm {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) epsilon: f32,
    pub(crate) x: Rows,
    /// One row.
    pub(crate) weight: Rows,
    pub(crate) out: Rows,
    pub(crate) stream: Option<Stream>,
}

/// The residual stream before and after; all of x's element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) residual: Rows,
    pub(crate) sum: Rows,
}

impl Op for RmsNorm {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe {
            match (self.x.element, self.weight.element) {
                (Element::Float32, Element::Float32) => self.run_as::<f32, f32>(extent, isa, pool),
                (Element::Float32, Element::Bfloat16) => self.run_as::<f32, Bfloat16>(extent, isa, pool),
                (Element::Bfloat16, Element::Float32) => self.run_as::<Bfloat16, f32>(extent, isa, pool),
                (Element::Bfloat16, Element::Bfloat16) => self.run_as::<Bfloat16, Bfloat16>(extent, isa, pool),
            }
        }
        Ok(())
    }
}

impl RmsNorm {
    /// # Safety
    ///
    /// As for `Op::run`; x and the weight are made of X and W.
    unsafe fn run_as<X: Storage, W: Storage>(&self, extent: Extent, isa: Isa, pool: &mut Pool) {
        let kernel = Normalise::<X, W> { norm: self, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, extent.tokens, self.hidden, isa, pool) }
    }
}

struct Normalise<'a, X, W> {
    norm: &'a RmsNorm,
    elements: PhantomData<(X, W)>,
}

impl<X: Storage, W: Storage> Kernel for Normalise<'_, X, W> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        let RmsNorm { hidden, epsilon, x, weight, out, stream, .. } = *self.norm;
        // SAFETY: as the caller promises.
        unsafe {
            let mut x = x.row::<X>(row);
            if let Some(Stream { residual, sum }) = stream {
                let (residual, total) = (residual.row::<X>(row), sum.row::<X>(row));
                for at in (0..hidden).step_by(LANES) {
                    let a: V = X::load_up_to(x.add(at), hidden - at);
                    let b = X::load_up_to(residual.add(at), hidden - at);
                    X::store_up_to(a.add(b), total.add(at), hidden - at);
                }
                x = total;
            }
            let mut sums = [V::splat(0.0); SUMS];
            for first in (0..hidden).step_by(SUMS * LANES) {
                for (index, sum) in sums.iter_mut().enumerate() {
                    let at = first + index * LANES;
                    if at < hidden {
                        let x: V = X::load_up_to(x.add(at), hidden - at);
                        *sum = x.mul_add(x, *sum);
                    }
                }
            }
            let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
            #[expect(clippy::cast_precision_loss, reason = "no model is as wide as 2^24")]
            let mean = sum / hidden as f32;
            let inverse_rms = V::splat(1.0 / (mean + epsilon).sqrt());
            let (weight, out) = (weight.row::<W>(0), out.row::<X>(row));
            for at in (0..hidden).step_by(LANES) {
                let x: V = X::load_up_to(x.add(at), hidden - at);
                let weight = W::load_up_to(weight.add(at), hidden - at);
                X::store_up_to(x.mul(inverse_rms).mul(weight), out.add(at), hidden - at);
            }
        }
    }
}
