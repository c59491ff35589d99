//! The causal convolution of each channel along its sequence (arXiv 2312.00752), whose state is the last inputs; and that
//! of LFM2 (arXiv 2511.23404), with a gate before it and one behind.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Row, RowArrays, StateRows, States, Steps};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Channels of a task: a token's are read in one piece, and the last tokens' stay in the L1 cache.
const CHUNK: usize = 512;
/// Vectors at once.
const VECTORS: usize = 4;
const MAX_WIDTH: usize = 8;

/// `out = silu(convolution(x))`; gated, a row of x is b, c and h, and `out = c * convolution(b * h)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CausalConvolution {
    gated: bool,
    tokens: usize,
    channels: usize,
    /// Inputs that make an output: the state has one less.
    width: usize,
    x: Matrix,
    /// Address of float32 [channels, width], the oldest input's weight first.
    weight: usize,
    /// Address of float32 [channels].
    bias: Option<usize>,
    rows: StateRows,
    states: States,
    out: Matrix,
}

/// `silu(convolution(x))` in `out`; the states change.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, rows, states, out))]
pub(crate) fn causal_convolution(
    py: Python<'_>,
    x: Array,
    weight: Array,
    bias: Option<Array>,
    rows: RowArrays,
    states: Array,
    out: Array,
) -> PyResult<()> {
    convolve(py, false, &x, &weight, bias.as_ref(), &rows, &states, &out)
}

/// `c * convolution(b * h)` in `out`, a row of x being b, c and h; the states change.
#[pyfunction]
#[pyo3(signature = (x, weight, bias, rows, states, out))]
pub(crate) fn gated_convolution(
    py: Python<'_>,
    x: Array,
    weight: Array,
    bias: Option<Array>,
    rows: RowArrays,
    states: Array,
    out: Array,
) -> PyResult<()> {
    convolve(py, true, &x, &weight, bias.as_ref(), &rows, &states, &out)
}

#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
fn convolve(
    py: Python<'_>,
    gated: bool,
    x: &Array,
    weight: &Array,
    bias: Option<&Array>,
    rows: &RowArrays,
    states: &Array,
    out: &Array,
) -> PyResult<()> {
    let [channels, width] = weight.dimensions("weight")?;
    if !(2..=MAX_WIDTH).contains(&width) {
        return Err(PyValueError::new_err(format!("a convolution of width {width}: it must be from 2 to {MAX_WIDTH}")));
    }
    let tokens = x.len();
    let op = CausalConvolution {
        gated,
        tokens,
        channels,
        width,
        x: x.matrix("x", [tokens, if gated { 3 * channels } else { channels }])?,
        weight: weight.elements("weight", "float32", &[channels, width])?,
        bias: bias.map(|bias| bias.elements("bias", "float32", &[channels])).transpose()?,
        rows: rows.read()?,
        states: States::of(states, &[width - 1, channels])?,
        out: out.matrix_of("out", x.dtype("x")?, [tokens, channels])?,
    };
    let mut arrays = vec![x, weight, states, out];
    arrays.extend(bias);
    arrays.extend(rows.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

impl Op for CausalConvolution {
    fn name(&self) -> &'static str {
        if self.gated { "gated_convolution" } else { "causal_convolution" }
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.rows.rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises; the steps' indices are valid.
        unsafe {
            let steps = self.rows.steps(extent, &self.states)?;
            for_dtype!(self.x.dtype, X => {
                if self.gated {
                    self.run_as::<X, true>(&steps, extent.tokens, isa, pool);
                } else {
                    self.run_as::<X, false>(&steps, extent.tokens, isa, pool);
                }
            });
        }
        Ok(())
    }
}

impl CausalConvolution {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage, const GATED: bool>(
        &self,
        steps: &Steps<'_>,
        tokens: usize,
        isa: Isa,
        pool: &mut Pool,
    ) {
        let kernel = Chunk::<X, GATED> { op: self, steps, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, self.channels.div_ceil(CHUNK), CHUNK * self.width * tokens, isa, pool, &|_| {}) }
    }
}

struct Chunk<'a, X, const GATED: bool> {
    op: &'a CausalConvolution,
    steps: &'a Steps<'a>,
    elements: PhantomData<X>,
}

impl<X: Storage, const GATED: bool> Kernel for Chunk<'_, X, GATED> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, part: usize) {
        let first = part * CHUNK;
        let end = (first + CHUNK).min(self.op.channels);
        let blocks = end - (end - first) % (VECTORS * LANES);
        // SAFETY: as the caller promises.
        unsafe {
            let taps = self.taps(first, end);
            for row in self.steps.rows() {
                for index in 0..self.op.width - 1 {
                    row.coming.prefetch(index * self.op.channels + first, end - first);
                }
                for token in row.tokens.clone() {
                    for at in (first..blocks).step_by(VECTORS * LANES) {
                        self.convolve::<V, VECTORS>(&row, token, &taps[at - first..], at, VECTORS * LANES);
                    }
                    for at in (blocks..end).step_by(LANES) {
                        self.convolve::<V, 1>(&row, token, &taps[at - first..], at, end - at);
                    }
                }
                if let Some(state) = row.destination {
                    for at in (first..blocks).step_by(VECTORS * LANES) {
                        self.keep_inputs::<V, VECTORS>(&row, state, at, VECTORS * LANES);
                    }
                    for at in (blocks..end).step_by(LANES) {
                        self.keep_inputs::<V, 1>(&row, state, at, end - at);
                    }
                }
            }
        }
    }
}

impl<X: Storage, const GATED: bool> Chunk<'_, X, GATED> {
    /// The weights of some channels, `CHUNK` for each input, the oldest first.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn taps(&self, first: usize, end: usize) -> [f32; MAX_WIDTH * CHUNK] {
        let mut taps = [0.0; MAX_WIDTH * CHUNK];
        let weight = with_exposed_provenance::<f32>(self.op.weight);
        for channel in first..end {
            for tap in 0..self.op.width {
                // SAFETY: as the caller promises.
                taps[tap * CHUNK + channel - first] = unsafe { *weight.add(channel * self.op.width + tap) };
            }
        }
        taps
    }

    /// Write a token's output at channel `at`, up to `left` channels; `taps` are theirs.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn convolve<V: Vector, const COUNT: usize>(
        &self,
        row: &Row,
        token: usize,
        taps: &[f32],
        at: usize,
        left: usize,
    ) {
        let CausalConvolution { channels, width, bias, x, out, .. } = *self.op;
        // SAFETY: as the caller promises; taps of channels beyond the last are zeros.
        unsafe {
            let mut sums = [V::splat(0.0); COUNT];
            if let Some(bias) = bias {
                let bias = with_exposed_provenance::<f32>(bias).add(at);
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum = f32::load_up_to(bias.add(index * LANES), left - index * LANES);
                }
            }
            for tap in 0..width {
                let inputs = self.inputs::<V, COUNT>(row, token - row.tokens.start + tap, at, left);
                for (index, (sum, input)) in sums.iter_mut().zip(inputs).enumerate() {
                    *sum = input.mul_add(V::load(taps[tap * CHUNK + index * LANES..].as_ptr()), *sum);
                }
            }
            for (index, sum) in sums.into_iter().enumerate() {
                let (at, left) = (at + index * LANES, left - index * LANES);
                let result =
                    if GATED { sum.mul(X::load_up_to(x.row::<X>(token).add(channels + at), left)) } else { sum.silu() };
                X::store_up_to(result, out.row::<X>(token).add(at), left);
            }
        }
    }

    /// The inputs of some channels at a position: the state's come first, then those of the row's tokens.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn inputs<V: Vector, const COUNT: usize>(
        &self,
        row: &Row,
        position: usize,
        at: usize,
        left: usize,
    ) -> [V; COUNT] {
        let CausalConvolution { channels, width, x, .. } = *self.op;
        let kept = width - 1;
        // SAFETY: as the caller promises.
        unsafe {
            let mut inputs = [V::splat(0.0); COUNT];
            if position >= kept {
                let x = x.row::<X>(row.tokens.start + position - kept).add(at);
                for (index, input) in inputs.iter_mut().enumerate() {
                    let (from, left) = (x.add(index * LANES), left - index * LANES);
                    *input = X::load_up_to(from, left);
                    if GATED {
                        *input = input.mul(X::load_up_to(from.add(2 * channels), left));
                    }
                }
            } else if let Some(source) = row.source {
                let state = source.add(position * channels + at);
                for (index, input) in inputs.iter_mut().enumerate() {
                    *input = f32::load_up_to(state.add(index * LANES), left - index * LANES);
                }
            }
            inputs
        }
    }

    /// Write the row's last inputs to its new state, which may be the old one: what is overwritten was read before.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn keep_inputs<V: Vector, const COUNT: usize>(&self, row: &Row, to: *mut f32, at: usize, left: usize) {
        for index in 0..self.op.width - 1 {
            // SAFETY: as the caller promises.
            unsafe {
                let inputs = self.inputs::<V, COUNT>(row, row.tokens.len() + index, at, left);
                let to = to.add(index * self.op.channels + at);
                for (vector, input) in inputs.into_iter().enumerate() {
                    f32::store_up_to(input, to.add(vector * LANES), left - vector * LANES);
                }
            }
        }
    }
}
