//! The gated sigmoid linear unit (arXiv 2002.05202).
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use crate::dtype::DType;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, RowWriter, run_rows};
use crate::threads::Pool;
use crate::vector::{Bfloat16, Kernel, LANES, Storage, Vector};

/// `out = silu(gate) * up`; a row of x is the gate, then up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiluAndMul {
    pub(crate) tokens: usize,
    pub(crate) intermediate: usize,
    pub(crate) x: Matrix,
    pub(crate) out: Matrix,
}

impl Op for SiluAndMul {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.write(extent.tokens, isa, pool, &|_| {}) };
        Ok(())
    }

    fn as_row_writer(&self) -> Option<&dyn RowWriter> {
        Some(self)
    }
}

impl RowWriter for SiluAndMul {
    fn out(&self) -> Matrix {
        self.out
    }

    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.x.dtype {
                DType::Float32 => self.run_as::<f32>(num_tokens, isa, pool, then),
                DType::Bfloat16 => self.run_as::<Bfloat16>(num_tokens, isa, pool, then),
            }
        }
    }
}

impl SiluAndMul {
    /// # Safety
    ///
    /// As for `RowWriter::write`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        let kernel = Gate::<X> { op: self, dtype: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, num_tokens, 2 * self.intermediate, isa, pool, then) }
    }
}

struct Gate<'a, X> {
    op: &'a SiluAndMul,
    dtype: PhantomData<X>,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_kernel_computes_the_gate(x in prop::collection::vec(-30.0..30.0_f32, 1..150)) {
            let (intermediate, x) = (x.len(), [x.clone(), x].concat());
            let mut fused = Vec::new();
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; intermediate];
                let rows = |address| Matrix { dtype: DType::Float32, address, stride: 0 };
                let op = SiluAndMul {
                    tokens: 1,
                    intermediate,
                    x: rows(x.as_ptr().expose_provenance()),
                    out: rows(out.as_mut_ptr().expose_provenance()),
                };
                // SAFETY: x has twice as many numbers as out; the test asks for what the machine has.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                for (&out, &x) in out.iter().zip(&x) {
                    let expected = f64::from(x).powi(2) / (1.0 + f64::from(-x).exp());
                    prop_assert!((f64::from(out) - expected).abs() <= 1e-6 * expected.abs() + 1e-30, "{isa:?}: {x}");
                }
                if isa > Isa::Portable {
                    fused.push(out);
                }
            }
            prop_assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "AVX2 and AVX-512 differ");
        }
    }
}
