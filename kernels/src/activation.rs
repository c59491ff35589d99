//! The gated sigmoid linear unit (arXiv 2002.05202).
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use crate::isa::Isa;
use crate::linear::Element;
use crate::op::{Extent, Op, OutOfRange, Rows, run_rows};
use crate::threads::Pool;
use crate::vector::{Bfloat16, Kernel, LANES, Storage, Vector};

/// `out = silu(gate) * up`; a row of x is the gate, then up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiluAndMul {
    pub(crate) tokens: usize,
    pub(crate) intermediate: usize,
    pub(crate) x: Rows,
    pub(crate) out: Rows,
}

impl Op for SiluAndMul {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.x.element {
                Element::Float32 => self.run_as::<f32>(extent, isa, pool),
                Element::Bfloat16 => self.run_as::<Bfloat16>(extent, isa, pool),
            }
        }
        Ok(())
    }
}

impl SiluAndMul {
    /// # Safety
    ///
    /// As for `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, extent: Extent, isa: Isa, pool: &mut Pool) {
        let kernel = Gate::<X> { op: self, element: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, extent.tokens, 2 * self.intermediate, isa, pool) }
    }
}

struct Gate<'a, X> {
    op: &'a SiluAndMul,
    element: PhantomData<X>,
}

impl<X: Storage> Kernel for Gate<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        let SiluAndMul { intermediate, x, out, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let gate = x.row::<X>(row);
            let (up, out) = (gate.add(intermediate), out.row::<X>(row));
            let (zero, one) = (V::splat(0.0), V::splat(1.0));
            for at in (0..intermediate).step_by(LANES) {
                let left = intermediate - at;
                let x: V = X::load_up_to(gate.add(at), left);
                let silu = x.div(zero.sub(x).exp().add(one));
                X::store_up_to(silu.mul(X::load_up_to(up.add(at), left)), out.add(at), left);
            }
        }
    }
}
