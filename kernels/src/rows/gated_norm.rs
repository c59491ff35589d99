//! Root mean square normalisation of groups of features, with a gate before it (arXiv 2405.21060) or behind.
//! The gate's function is the sigmoid linear unit, or for Kimi's the sigmoid (arXiv 2510.26692).
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, RowWriter, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// `out = normalised(x * function(gate)) * weight`, or `normalised(x) * weight * function(gate)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedNorm {
    tokens: usize,
    features: usize,
    group_size: usize,
    gate_first: bool,
    sigmoid: bool,
    epsilon: f32,
    x: Matrix,
    gate: Matrix,
    /// One row: of all features, or of one group.
    weight: Matrix,
    out: Matrix,
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn gated_norm(
    py: Python<'_>,
    x: Array,
    gate: Array,
    weight: Array,
    epsilon: f32,
    group_size: usize,
    gate_first: bool,
    function: &str,
    out: Array,
) -> PyResult<()> {
    let shape @ [tokens, features] = x.dimensions("x")?;
    if group_size == 0 || !features.is_multiple_of(group_size) {
        return Err(PyValueError::new_err(format!("{features} features in groups of {group_size}: give a divisor")));
    }
    let sigmoid = match function {
        "silu" => false,
        "sigmoid" => true,
        _ => return Err(PyValueError::new_err(format!("no function {function:?} of a gate: use silu or sigmoid"))),
    };
    let dtype = x.dtype("x")?;
    let of_weight = if weight.len() == features { features } else { group_size };
    let op = GatedNorm {
        tokens,
        features,
        group_size,
        gate_first,
        sigmoid,
        epsilon,
        x: x.matrix("x", shape)?,
        gate: gate.matrix_of("gate", dtype, shape)?,
        weight: weight.vector("weight", of_weight)?,
        out: out.matrix_of("out", dtype, shape)?,
    };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&x, &gate, &weight, &out]) }
}

impl Op for GatedNorm {
    fn name(&self) -> &'static str {
        "gated_norm"
    }

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

impl RowWriter for GatedNorm {
    fn out(&self) -> Matrix {
        self.out
    }

    unsafe fn write(&self, num_tokens: usize, isa: Isa, pool: &mut Pool, then: &(dyn Fn(usize) + Sync)) {
        // SAFETY: as the caller promises.
        unsafe {
            for_dtype!(self.x.dtype, X => {
                for_dtype!(self.weight.dtype, W => {
                    let kernel = Normalise::<X, W> { norm: self, elements: PhantomData };
                    run_rows(&kernel, num_tokens, self.features, isa, pool, then);
                });
            });
        }
    }
}

struct Normalise<'a, X, W> {
    norm: &'a GatedNorm,
    elements: PhantomData<(X, W)>,
}

impl<X: Storage, W: Storage> Kernel for Normalise<'_, X, W> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        let GatedNorm { features, group_size, gate_first, sigmoid, epsilon, x, gate, weight, out, .. } = *self.norm;
        for first in (0..features).step_by(group_size) {
            // SAFETY: as the caller promises.
            unsafe {
                let (x, gate) = (x.row::<X>(row).add(first), gate.row::<X>(row).add(first));
                let weight = weight.row::<W>(0).add(if weight.stride == features { first } else { 0 });
                let out = out.row::<X>(row).add(first);
                let group = Group { x, gate, sigmoid, weight, out, size: group_size, epsilon };
                if gate_first {
                    group.normalise::<V, true>();
                } else {
                    group.normalise::<V, false>();
                }
            }
        }
    }
}

/// Adjacent features.
struct Group<X, W> {
    x: *const X,
    gate: *const X,
    sigmoid: bool,
    weight: *const W,
    out: *mut X,
    size: usize,
    epsilon: f32,
}

impl<X: Storage, W: Storage> Group<X, W> {
    /// # Safety
    ///
    /// See `Kernel::run`; the pointers are valid.
    #[inline(always)]
    unsafe fn normalise<V: Vector, const GATE_FIRST: bool>(&self) {
        let Self { weight, out, size, epsilon, .. } = *self;
        // SAFETY: as the caller promises.
        unsafe {
            let mut squares = [V::splat(0.0); 2];
            for at in (0..size).step_by(LANES) {
                let x: V = self.x(at);
                let input = if GATE_FIRST { self.gated(x, at) } else { x };
                squares[at / LANES % 2] = input.mul_add(input, squares[at / LANES % 2]);
            }
            #[expect(clippy::cast_precision_loss, reason = "no model is as wide as 2^24")]
            let mean = squares[0].add(squares[1]).sum() / size as f32;
            let inverse_rms = V::splat(1.0 / (mean + epsilon).sqrt());
            for at in (0..size).step_by(LANES) {
                let (x, weight): (V, V) = (self.x(at), W::load_up_to(weight.add(at), size - at));
                let result = if GATE_FIRST {
                    self.gated(x, at).mul(inverse_rms).mul(weight)
                } else {
                    self.gated(x.mul(inverse_rms).mul(weight), at)
                };
                X::store_up_to(result, out.add(at), size - at);
            }
        }
    }

    /// # Safety
    ///
    /// See `normalise`.
    #[inline(always)]
    unsafe fn x<V: Vector>(&self, at: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { X::load_up_to(self.x.add(at), self.size - at) }
    }

    /// # Safety
    ///
    /// See `normalise`.
    #[inline(always)]
    unsafe fn gated<V: Vector>(&self, numbers: V, at: usize) -> V {
        // SAFETY: as the caller promises.
        let gate: V = unsafe { X::load_up_to(self.gate.add(at), self.size - at) };
        numbers.mul(if self.sigmoid { gate.sigmoid() } else { gate.silu() })
    }
}
