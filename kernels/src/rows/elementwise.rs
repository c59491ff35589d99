//! Elementwise changes of a matrix: a bias, a factor and a cap, a limit, the residual added, a gate, or another dtype.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// The new value of x.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// `x + bias`, one row for all.
    Bias(Matrix),
    /// `factor * x`, and with a cap `cap * tanh(factor * x / cap)`.
    Scale { factor: f32, cap: Option<f32> },
    /// x, from `-limit` to `limit`.
    Clamp(f32),
    /// `factor * x + residual`, of the dtype of x.
    Add { factor: f32, residual: Matrix },
    /// `x * function(gate)`, of the dtype of x; a number of the gate is that of so many adjacent features.
    Gate { gate: Matrix, features: usize, function: GateFunction },
    /// `x * gate * sigmoid(gate)`, of the dtype of x.
    SiluGate(Matrix),
    /// `x` as float32.
    Widen,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum GateFunction {
    Sigmoid,
    Softplus,
}

/// Write the change of x to out, which may be x; both have the same dtype, unless x is widened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elementwise {
    pub(crate) change: Change,
    pub(crate) tokens: usize,
    pub(crate) width: usize,
    pub(crate) x: Matrix,
    pub(crate) out: Matrix,
}

/// `factor * x + residual` in `out`.
#[pyfunction]
pub(crate) fn add(py: Python<'_>, x: Array, residual: Array, factor: f32, out: Array) -> PyResult<()> {
    let shape = x.dimensions("x")?;
    let residual_rows = residual.matrix_of("residual", x.dtype("x")?, shape)?;
    change(py, Change::Add { factor, residual: residual_rows }, &x, &out, &[&x, &residual, &out])
}

/// `x + bias` in x.
#[pyfunction]
pub(crate) fn add_bias(py: Python<'_>, x: Array, bias: Array) -> PyResult<()> {
    let [_, width] = x.dimensions("x")?;
    change(py, Change::Bias(bias.vector("bias", width)?), &x, &x, &[&x, &bias])
}

/// `factor * x` in x, and with a cap `cap * tanh(factor * x / cap)`.
#[pyfunction]
#[pyo3(signature = (x, factor, cap))]
pub(crate) fn scale_and_cap(py: Python<'_>, x: Array, factor: f32, cap: Option<f32>) -> PyResult<()> {
    change(py, Change::Scale { factor, cap }, &x, &x, &[&x])
}

/// x in x, from `-limit` to `limit`.
#[pyfunction]
pub(crate) fn clamp(py: Python<'_>, x: Array, limit: f32) -> PyResult<()> {
    change(py, Change::Clamp(limit), &x, &x, &[&x])
}

/// `x * sigmoid(gate)` in x.
#[pyfunction]
pub(crate) fn sigmoid_gate(py: Python<'_>, x: Array, gate: Array) -> PyResult<()> {
    gate_by(py, &x, &gate, GateFunction::Sigmoid)
}

/// `x * softplus(gate)` in x.
#[pyfunction]
pub(crate) fn softplus_gate(py: Python<'_>, x: Array, gate: Array) -> PyResult<()> {
    gate_by(py, &x, &gate, GateFunction::Softplus)
}

fn gate_by(py: Python<'_>, x: &Array, gate: &Array, function: GateFunction) -> PyResult<()> {
    let ([tokens, width], [_, numbers]) = (x.dimensions("x")?, gate.dimensions("gate")?);
    if numbers == 0 || !width.is_multiple_of(numbers) {
        return Err(PyValueError::new_err(format!("a gate of {numbers} numbers for {width} features: give a divisor")));
    }
    let rows = gate.matrix_of("gate", x.dtype("x")?, [tokens, numbers])?;
    change(py, Change::Gate { gate: rows, features: width / numbers, function }, x, x, &[x, gate])
}

/// `x * gate * sigmoid(gate)` in x.
#[pyfunction]
pub(crate) fn silu_gate(py: Python<'_>, x: Array, gate: Array) -> PyResult<()> {
    let rows = gate.matrix_of("gate", x.dtype("x")?, x.dimensions("x")?)?;
    change(py, Change::SiluGate(rows), &x, &x, &[&x, &gate])
}

/// The numbers of x in `out`, float32.
#[pyfunction]
pub(crate) fn widen(py: Python<'_>, x: Array, out: Array) -> PyResult<()> {
    change(py, Change::Widen, &x, &out, &[&x, &out])
}

fn change(py: Python<'_>, change: Change, x: &Array, out: &Array, arrays: &[&Array]) -> PyResult<()> {
    let shape @ [tokens, width] = x.dimensions("x")?;
    let dtype = if matches!(change, Change::Widen) { DType::Float32 } else { x.dtype("x")? };
    let (x, out) = (x.matrix("x", shape)?, out.matrix_of("out", dtype, shape)?);
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, Elementwise { change, tokens, width, x, out }, arrays) }
}

impl Op for Elementwise {
    fn name(&self) -> &'static str {
        match self.change {
            Change::Bias(_) => "add_bias",
            Change::Scale { .. } => "scale_and_cap",
            Change::Clamp(_) => "clamp",
            Change::Add { .. } => "add",
            Change::Gate { function: GateFunction::Sigmoid, .. } => "sigmoid_gate",
            Change::Gate { function: GateFunction::Softplus, .. } => "softplus_gate",
            Change::SiluGate(_) => "silu_gate",
            Change::Widen => "widen",
        }
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(self.x.dtype, X => self.run_as::<X>(extent.tokens, isa, pool)) }
        Ok(())
    }
}

impl Elementwise {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, num_tokens: usize, isa: Isa, pool: &mut Pool) {
        let kernel = Row::<X> { op: self, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, num_tokens, self.width, isa, pool, &|_| {}) }
    }
}

struct Row<'a, X> {
    op: &'a Elementwise,
    elements: PhantomData<X>,
}

impl<X: Storage> Kernel for Row<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, row: usize) {
        // SAFETY: as the caller promises; a bias is made of what its dtype says.
        unsafe {
            match self.op.change {
                Change::Bias(bias) => for_dtype!(bias.dtype, B => self.add_bias::<V, B>(row, bias.row(0))),
                Change::Scale { factor, cap: None } => {
                    let factor = V::splat(factor);
                    self.change::<V>(row, |x, _, _| x.mul(factor));
                }
                Change::Scale { factor, cap: Some(cap) } => {
                    let (factor, cap) = (V::splat(factor), V::splat(cap));
                    self.change::<V>(row, |x, _, _| x.mul(factor).div(cap).tanh().mul(cap));
                }
                Change::Clamp(limit) => {
                    let (least, most) = (V::splat(-limit), V::splat(limit));
                    self.change::<V>(row, |x, _, _| least.max(most.min(x))); // in this order, NaN stays NaN
                }
                Change::Add { factor, residual } => {
                    let (factor, residual) = (V::splat(factor), residual.row::<X>(row));
                    self.change::<V>(row, |x, at, left| x.mul_add(factor, X::load_up_to(residual.add(at), left)));
                }
                Change::Gate { gate, features, function: GateFunction::Sigmoid } => {
                    self.gate::<V>(row, gate, features, |x, gate| x.div(exp_of_minus_and_one(gate)));
                }
                Change::Gate { gate, features, function: GateFunction::Softplus } => {
                    self.gate::<V>(row, gate, features, |x, gate| x.mul(gate.softplus()));
                }
                Change::SiluGate(gate) => {
                    let gate = gate.row::<X>(row);
                    self.change::<V>(row, |x, at, left| {
                        let gate: V = X::load_up_to(gate.add(at), left);
                        x.mul(gate.silu())
                    });
                }
                Change::Widen => self.change_to::<V, f32>(row, |x, _, _| x),
            }
        }
    }
}

impl<X: Storage> Row<'_, X> {
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn add_bias<V: Vector, B: Storage>(&self, row: usize, bias: *const B) {
        // SAFETY: as the caller promises.
        unsafe { self.change::<V>(row, |x, at, left| x.add(B::load_up_to(bias.add(at), left))) }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn gate<V: Vector>(&self, row: usize, gate: Matrix, features: usize, gated: impl Fn(V, V) -> V) {
        // SAFETY: as the caller promises.
        unsafe {
            let gate = gate.row::<X>(row);
            if features == 1 {
                return self.change::<V>(row, |x, at, left| gated(x, X::load_up_to(gate.add(at), left)));
            }
            for (number, first) in (0..self.op.width).step_by(features).enumerate() {
                let number = V::splat((*gate.add(number)).widen());
                self.change_part::<V, X>(row, first..first + features, |x, _, _| gated(x, number));
            }
        }
    }

    /// Change each vector; `change` gets its index in the row, and the number of elements from there on.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn change<V: Vector>(&self, row: usize, change: impl Fn(V, usize, usize) -> V) {
        // SAFETY: as the caller promises.
        unsafe { self.change_to::<V, X>(row, change) }
    }

    /// The same for elements of the type O in out.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn change_to<V: Vector, O: Storage>(&self, row: usize, change: impl Fn(V, usize, usize) -> V) {
        // SAFETY: as the caller promises.
        unsafe { self.change_part::<V, O>(row, 0..self.op.width, change) }
    }

    /// The same for some of the row's features.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn change_part<V: Vector, O: Storage>(
        &self,
        row: usize,
        part: Range<usize>,
        change: impl Fn(V, usize, usize) -> V,
    ) {
        let Elementwise { x, out, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let (x, out) = (x.row::<X>(row), out.row::<O>(row));
            for at in part.clone().step_by(LANES) {
                let left = part.end - at;
                O::store_up_to(change(X::load_up_to(x.add(at), left), at, left), out.add(at), left);
            }
        }
    }
}

/// `1 + exp(-x)`, which a number is divided by to multiply it with the sigmoid of x.
#[inline(always)]
fn exp_of_minus_and_one<V: Vector>(x: V) -> V {
    // SAFETY: x exists.
    let (zero, one) = unsafe { (V::splat(0.0), V::splat(1.0)) };
    zero.sub(x).exp().add(one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_kernel_changes_every_number(
            numbers in prop::collection::vec((-9.0..9.0_f32, -9.0..9.0_f32), 1..150),
            factor in 0.1..3.0_f32,
            cap in 1.0..30.0_f32,
        ) {
            let mut x: Vec<f32> = numbers.iter().map(|pair| pair.0).collect();
            let mut other: Vec<f32> = numbers.iter().map(|pair| pair.1).collect();
            let rows = |numbers: &mut [f32]| Matrix {
                dtype: DType::Float32,
                address: numbers.as_mut_ptr().expose_provenance(),
                stride: numbers.len(),
            };
            let other = rows(&mut other);
            let changes = [
                Change::Bias(other),
                Change::Scale { factor, cap: None },
                Change::Scale { factor, cap: Some(cap) },
                Change::Clamp(factor),
                Change::Add { factor, residual: other },
                Change::Gate { gate: other, features: 1, function: GateFunction::Sigmoid },
                Change::Gate { gate: other, features: x.len(), function: GateFunction::Sigmoid },
                Change::Gate { gate: other, features: 1, function: GateFunction::Softplus },
                Change::SiluGate(other),
                Change::Widen,
            ];
            for (change, isa) in changes.into_iter().flat_map(|change| Isa::available().map(move |isa| (change, isa))) {
                let mut out = vec![f32::NAN; x.len()];
                let op = Elementwise { change, tokens: 1, width: x.len(), x: rows(&mut x), out: rows(&mut out) };
                // SAFETY: every row is a vector of as many numbers; the test asks for what the machine has.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("there is no index");
                for (&out, &(x, other)) in out.iter().zip(&numbers) {
                    let (x, other, factor, wide_cap) =
                        (f64::from(x), f64::from(other), f64::from(factor), f64::from(cap));
                    let expected = match change {
                        Change::Bias(_) => x + other,
                        Change::Scale { cap: None, .. } => factor * x,
                        Change::Scale { .. } => wide_cap * (factor * x / wide_cap).tanh(),
                        Change::Clamp(_) => x.clamp(-factor, factor),
                        Change::Add { .. } => factor * x + other,
                        Change::Gate { features, function, .. } => {
                            let gate = if features == 1 { other } else { f64::from(numbers[0].1) };
                            match function {
                                GateFunction::Sigmoid => x / (1.0 + (-gate).exp()),
                                GateFunction::Softplus => x * gate.exp().ln_1p(),
                            }
                        }
                        Change::SiluGate(_) => x * other / (1.0 + (-other).exp()),
                        Change::Widen => x,
                    };
                    let tolerance = 1e-5 * expected.abs().max(1.0);
                    prop_assert!((f64::from(out) - expected).abs() < tolerance, "{isa:?} {change:?}: {x} gives {out}");
                }
            }
        }
    }
}
