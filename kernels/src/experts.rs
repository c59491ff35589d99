//! Feed-forward layers with a router that picks a few experts per token (arXiv 1701.06538): routing, products of each
//! expert's rows, and the sum of the results by the router's weights.
//!
//! A token's result depends on that token alone: a product's row does not depend on other rows, and results are added
//! in the order of the experts' numbers.
#![expect(clippy::inline_always, reason = "see `Vector`")]

mod routing;

use std::mem;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;
use crate::execution::execute;
use crate::isa::Isa;
use crate::linear::packed_linear;
use crate::linear::{GROUP_ROWS, Linear, Product};
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::rows::activation::{Activate, Activation, Kind};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

use routing::{Pair, Router, RouterArrays, Routes};

/// The matrices of all experts of this rank, packed one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertMatrices {
    /// The matrix of one expert.
    pub(crate) linear: Linear,
    pub(crate) packed: usize,
    /// [experts, outputs], of the dtype of x.
    pub(crate) bias: Option<Matrix>,
}

/// `out = sum of weight * down(kind(gate(x)) * up(x))` over the experts of each token; without a gate
/// `down(kind(up(x)))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) tokens: usize,
    /// [tokens, hidden]
    pub(crate) x: Matrix,
    /// [tokens, experts], of the dtype of x or float32.
    pub(crate) logits: Matrix,
    pub(crate) router: Router,
    pub(crate) kind: Kind,
    pub(crate) gate: Option<ExpertMatrices>,
    pub(crate) up: ExpertMatrices,
    pub(crate) down: ExpertMatrices,
    /// [tokens, hidden], of the dtype of x.
    pub(crate) out: Matrix,
}

/// `ExpertMatrices` of Python: gate, up and down of all of this rank's experts, stacked by rows.
#[derive(FromPyObject)]
pub(crate) struct PackedExperts {
    gate: Option<Packed>,
    up: Packed,
    down: Packed,
    gate_bias: Option<Array>,
    up_bias: Option<Array>,
    down_bias: Option<Array>,
}

/// `PackedLinear` of Python.
#[derive(FromPyObject)]
pub(crate) struct Packed {
    layout: Py<packed_linear::Linear>,
    data: Array,
}

/// The sum of each token's experts, see `ops/experts.py`.
#[pyfunction]
pub(crate) fn experts(
    py: Python<'_>,
    x: Array,
    logits: Array,
    router: RouterArrays,
    kind: Kind,
    matrices: PackedExperts,
    out: Array,
) -> PyResult<()> {
    let rule @ Router { num_experts, count, .. } = router.router()?;
    let (dtype, shape @ [tokens, hidden]) = (x.dtype("x")?, x.dimensions("x")?);
    let PackedExperts { gate, up, down, gate_bias, up_bias, down_bias } = &matrices;
    let size = down.layout.get().0.in_features;
    let read = |name, packed, bias, shape| read_matrices(name, packed, bias, count, dtype, shape);
    let op = Experts {
        tokens,
        x: x.matrix("x", shape)?,
        logits: read_logits(&logits, dtype, [tokens, num_experts])?,
        router: rule,
        kind,
        gate: gate.as_ref().map(|gate| read("gate", gate, gate_bias.as_ref(), [size, hidden])).transpose()?,
        up: read("up", up, up_bias.as_ref(), [size, hidden])?,
        down: read("down", down, down_bias.as_ref(), [hidden, size])?,
        out: out.matrix_of("out", dtype, shape)?,
    };
    if op.gate.and_then(|gate| gate.bias).is_some() != op.up.bias.is_some() {
        return Err(PyValueError::new_err("a bias of the gate or of up alone: give both or none"));
    }
    if op.gate.is_none() && kind.is_gated() {
        return Err(PyValueError::new_err("a clamped gate, and the experts have no gate"));
    }
    let biases = [gate_bias, up_bias, down_bias, &router.correction, &router.expert_factors].into_iter().flatten();
    let gates = gate.iter().map(|gate| &gate.data);
    let arrays: Vec<_> = [&x, &logits, &up.data, &down.data, &out].into_iter().chain(gates).chain(biases).collect();
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

/// Logits of a dtype, or of float32.
fn read_logits(logits: &Array, dtype: DType, shape: [usize; 2]) -> PyResult<Matrix> {
    let dtype = if logits.dtype_name() == DType::Float32.name() { DType::Float32 } else { dtype };
    logits.matrix_of("logits", dtype, shape)
}

/// The matrices of `count` experts, each of the shape [outputs, inputs].
fn read_matrices(
    name: &str,
    packed: &Packed,
    bias: Option<&Array>,
    count: usize,
    dtype: DType,
    shape: [usize; 2],
) -> PyResult<ExpertMatrices> {
    let whole = packed.layout.get();
    let Some(linear) = whole.0.split(count) else {
        let outputs = whole.0.out_features;
        return Err(PyValueError::new_err(format!(
            "{outputs} outputs are not those of {count} experts, each a multiple of 32"
        )));
    };
    let found = [linear.out_features, linear.in_features];
    if found != shape || linear.dtype != dtype {
        return Err(PyValueError::new_err(format!(
            "an expert's matrix {name} is {} {found:?}, beside {} {shape:?}",
            linear.dtype.name(),
            dtype.name()
        )));
    }
    let of_bias = |bias: &Array| bias.matrix_of(&format!("{name}_bias"), dtype, [count, shape[0]]);
    Ok(ExpertMatrices { linear, packed: whole.memory_of(&packed.data)?, bias: bias.map(of_bias).transpose()? })
}

impl Op for Experts {
    fn name(&self) -> &'static str {
        "experts"
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

impl Experts {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, num_tokens: usize, isa: Isa, pool: &mut Pool) {
        // SAFETY: as the caller promises.
        let routes = unsafe { Routes::of(&self.router, self.logits, num_tokens) };
        let (hidden, size) = (self.down.linear.out_features, self.down.linear.in_features);
        let num_rows = routes.num_rows.next_multiple_of(GROUP_ROWS);
        let inner_width = if self.gate.is_some() { 2 * size } else { size };
        let mut memory = mem::take(&mut pool.rows);
        let mut rest =
            memory.bytes(num_rows * (2 * hidden + inner_width + size) * size_of::<X>()).as_mut_ptr().cast::<X>();
        let mut rows_of = |width: usize| {
            let rows = rest;
            rest = rest.wrapping_add(num_rows * width);
            rows
        };
        let (gathered, inner) = (rows_of(hidden), rows_of(inner_width));
        let (activated, results) = (rows_of(size), rows_of(hidden));

        let gather = Gather::<X> { from: self.x, to: gathered, width: hidden, routes: &routes };
        // SAFETY: as the caller promises; there is room for all rows, and each is written by one task.
        unsafe {
            run_rows(&gather, routes.pairs.len(), hidden, isa, pool, &|_| {});
            if let Some(gate) = self.gate {
                gate.multiply(gathered, inner, inner_width, &routes, isa, pool);
            }
            self.up.multiply(gathered, inner.add(inner_width - size), inner_width, &routes, isa, pool);
            let rows = |first: *mut X, width: usize| Matrix {
                dtype: self.x.dtype,
                address: first.expose_provenance(),
                stride: width,
            };
            let (x, out) = (rows(inner, inner_width), rows(activated, size));
            let up = self.gate.map(|_| x.columns_from(size));
            let activation = Activation { kind: self.kind, tokens: num_rows, width: size, x, up, out };
            let biases = self.gate.and_then(|gate| gate.bias).zip(self.up.bias);
            let activate = ActivateRow { kernel: Activate::<X>::new(&activation), biases, routes: &routes };
            run_rows(&activate, routes.pairs.len(), inner_width, isa, pool, &|_| {});
            self.down.multiply(activated, results, hidden, &routes, isa, pool);
            let sum = WeightedSum::<X> { results, bias: self.down.bias, out: self.out, width: hidden, routes: &routes };
            run_rows(&sum, num_tokens, routes.active * hidden, isa, pool, &|_| {});
        }
        pool.rows = memory;
    }
}

impl ExpertMatrices {
    /// # Safety
    ///
    /// See `Product::run_groups`; x and out are made of X, and out has rows of `out_width`.
    unsafe fn multiply<X: Storage>(
        &self,
        x: *const X,
        out: *mut X,
        out_width: usize,
        routes: &Routes,
        isa: Isa,
        pool: &mut Pool,
    ) {
        let product = Product {
            linear: self.linear,
            x: x.cast(),
            packed: std::ptr::with_exposed_provenance(self.packed),
            out: out.cast(),
            out_stride: out_width * size_of::<X>(),
        };
        // SAFETY: as the caller promises.
        unsafe { product.run_groups(&routes.groups, isa, pool) };
    }
}

/// Copies the row of each pair's token to its place among the expert's rows, times its weight if that is for inputs.
struct Gather<'a, X> {
    from: Matrix,
    to: *mut X,
    width: usize,
    routes: &'a Routes,
}

// SAFETY: a task writes to rows that no other task has.
unsafe impl<X> Sync for Gather<'_, X> {}

impl<X: Storage> Kernel for Gather<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, pair: usize) {
        let from = self.from.row::<X>(pair / self.routes.active);
        let Pair { weight, row: Some(row), .. } = self.routes.pairs[pair] else { return };
        let to = self.to.wrapping_add(row as usize * self.width);
        // SAFETY: as the caller promises.
        unsafe {
            if !self.routes.weighs_inputs {
                return std::ptr::copy_nonoverlapping(from, to, self.width);
            }
            let weight = V::splat(weight);
            for at in (0..self.width).step_by(LANES) {
                let left = self.width - at;
                X::store_up_to(X::load_up_to::<V>(from.add(at), left).mul(weight), to.add(at), left);
            }
        }
    }
}

/// The activation of a pair's row.
struct ActivateRow<'a, X> {
    kernel: Activate<'a, X>,
    biases: Option<(Matrix, Matrix)>,
    routes: &'a Routes,
}

impl<X: Storage> Kernel for ActivateRow<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, pair: usize) {
        let pair = &self.routes.pairs[pair];
        if let Some(row) = pair.row {
            let matrix = self.routes.matrix_of(pair);
            let biases = self.biases.map(|(gate, up)| [gate, up].map(|bias| bias.row::<X>(matrix).cast_const()));
            // SAFETY: as the caller promises.
            unsafe { self.kernel.run_with::<V>(row as usize, biases) };
        }
    }
}

/// Adds up the results of each token's experts.
struct WeightedSum<'a, X> {
    results: *const X,
    bias: Option<Matrix>,
    out: Matrix,
    width: usize,
    routes: &'a Routes,
}

// SAFETY: as for `Gather`.
unsafe impl<X> Sync for WeightedSum<'_, X> {}

impl<X: Storage> Kernel for WeightedSum<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, token: usize) {
        let (active, width) = (self.routes.active, self.width);
        let pairs = &self.routes.pairs[token * active..(token + 1) * active];
        let out = self.out.row::<X>(token);
        // SAFETY: as the caller promises.
        unsafe {
            for at in (0..width).step_by(LANES) {
                let mut sum = V::splat(0.0);
                for pair in pairs {
                    let Some(row) = pair.row else { continue };
                    let mut result: V = X::load_up_to(self.results.add(row as usize * width + at), width - at);
                    if let Some(bias) = self.bias {
                        let bias = bias.row::<X>(self.routes.matrix_of(pair)).cast_const();
                        result = result.add(X::load_up_to(bias.add(at), width - at));
                    }
                    let weight = if self.routes.weighs_inputs { 1.0 } else { pair.weight };
                    sum = result.mul_add(V::splat(weight), sum);
                }
                X::store_up_to(sum, out.add(at), width - at);
            }
        }
    }
}

#[cfg(test)]
mod tests;
