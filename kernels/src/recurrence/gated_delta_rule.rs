//! The gated delta rule (arXiv 2412.06464): a state is a matrix from keys to values, which forgets by a factor, and
//! learns the difference between a token's value and the one that it has for the token's key.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance;

use pyo3::prelude::*;

use super::{RowArrays, StateRows, States, Steps, heads_a_group};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::memory::scratch;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Added to the sum of squares of a query or key that is normalised.
const EPSILON: f32 = 1e-6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedDeltaRule {
    tokens: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// A row is a token: all queries, all keys, all values.
    qkv: Matrix,
    /// A row is a token: a number for each value head.
    decay: Matrix,
    beta: Matrix,
    /// Addresses of float32 [value_heads].
    decay_scale: usize,
    decay_bias: usize,
    rows: StateRows,
    states: States,
    out: Matrix,
}

/// The values that the states have for the queries, in `out`; the states change.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn gated_delta_rule(
    py: Python<'_>,
    qkv: Array,
    decay: Array,
    beta: Array,
    decay_scale: Array,
    decay_bias: Array,
    rows: RowArrays,
    states: Array,
    key_heads: usize,
    out: Array,
) -> PyResult<()> {
    let [_, value_heads, key_dim, value_dim] = states.dimensions("states")?;
    heads_a_group(value_heads, key_heads)?;
    let (dtype, tokens) = (qkv.dtype("qkv")?, qkv.len());
    let op = GatedDeltaRule {
        tokens,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        qkv: qkv.matrix("qkv", [tokens, 2 * key_heads * key_dim + value_heads * value_dim])?,
        decay: decay.matrix_of("decay", dtype, [tokens, value_heads])?,
        beta: beta.matrix_of("beta", dtype, [tokens, value_heads])?,
        decay_scale: decay_scale.elements("decay_scale", "float32", &[value_heads])?,
        decay_bias: decay_bias.elements("decay_bias", "float32", &[value_heads])?,
        rows: rows.read()?,
        states: States::of(&states, &[value_heads, key_dim, value_dim])?,
        out: out.matrix_of("out", dtype, [tokens, value_heads * value_dim])?,
    };
    let mut arrays = vec![&qkv, &decay, &beta, &decay_scale, &decay_bias, &states, &out];
    arrays.extend(rows.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

impl Op for GatedDeltaRule {
    fn name(&self) -> &'static str {
        "gated_delta_rule"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.rows.rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises; the steps' indices are valid.
        unsafe {
            let steps = self.rows.steps(extent, &self.states)?;
            for_dtype!(self.qkv.dtype, X => self.run_as::<X>(&steps, extent.tokens, isa, pool));
        }
        Ok(())
    }
}

impl GatedDeltaRule {
    /// # Safety
    ///
    /// See `Op::run`; qkv is made of X.
    unsafe fn run_as<X: Storage>(&self, steps: &Steps<'_>, tokens: usize, isa: Isa, pool: &mut Pool) {
        let kernel = Head::<X> { op: self, steps, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, self.value_heads, self.key_dim * self.value_dim * tokens, isa, pool, &|_| {}) }
    }

    /// Floats of a head's state.
    fn size(&self) -> usize {
        self.key_dim * self.value_dim
    }
}

/// A value head.
struct Head<'a, X> {
    op: &'a GatedDeltaRule,
    steps: &'a Steps<'a>,
    elements: PhantomData<X>,
}

// SAFETY: a task has a head of its own, in the states as well.
unsafe impl<X> Sync for Head<'_, X> {}

impl<X: Storage> Kernel for Head<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, head: usize) {
        let GatedDeltaRule { key_dim, value_dim, .. } = *self.op;
        let (keys, values) = (key_dim.next_multiple_of(LANES), value_dim.next_multiple_of(LANES));
        let memory = scratch::of_thread(3 * keys + values + self.op.size());
        // SAFETY: as the caller promises; there is so much memory.
        unsafe {
            let mut token = Token {
                query: memory,
                key: memory.add(keys),
                next_key: memory.add(2 * keys),
                recalled: memory.add(3 * keys),
                decay: 0.0,
                beta: 0.0,
            };
            let dropped = memory.add(3 * keys + values);
            for row in self.steps.rows() {
                let to = row.destination.map_or(dropped, |state| state.add(head * self.op.size()));
                let mut from = to.cast_const();
                match row.source {
                    Some(state) => from = state.add(head * self.op.size()),
                    None => to.write_bytes(0, self.op.size()),
                }
                if row.tokens.is_empty() {
                    std::ptr::copy(from, to, self.op.size());
                    continue;
                }
                self.load_key::<V>(head, row.tokens.start, token.key);
                self.recall::<V>(from, &token);
                for index in row.tokens.clone() {
                    self.load::<V>(head, index, &mut token);
                    if index + 1 < row.tokens.end {
                        self.load_key::<V>(head, index + 1, token.next_key);
                        self.advance_all::<V, true>(head, index, &token, from, to);
                    } else {
                        self.advance_all::<V, false>(head, index, &token, from, to);
                    }
                    std::mem::swap(&mut token.key, &mut token.next_key);
                    from = to;
                }
            }
        }
    }
}

/// The numbers of one token and head.
struct Token {
    /// Normalised, and scaled.
    query: *mut f32,
    /// Normalised.
    key: *mut f32,
    /// The following token's.
    next_key: *mut f32,
    /// The value that the state has for the key, before it forgets.
    recalled: *mut f32,
    /// The factor by which the state forgets.
    decay: f32,
    /// The share of the difference that the state learns.
    beta: f32,
}

impl<X: Storage> Head<'_, X> {
    /// Load all of a token but its keys.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, head: usize, index: usize, token: &mut Token) {
        let GatedDeltaRule { key_dim, qkv, decay, beta, decay_scale, decay_bias, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            #[expect(clippy::cast_precision_loss, reason = "no head is as wide as 2^24")]
            let scale = 1.0 / (key_dim as f32).sqrt();
            let query = qkv.row::<X>(index).add(self.key_head(head) * key_dim);
            normalise::<V, X>(query, token.query, key_dim, scale);
            let number = |address: usize| V::splat(*with_exposed_provenance::<f32>(address).add(head));
            let step = V::splat((*decay.row::<X>(index).add(head)).widen()).add(number(decay_bias)).softplus();
            token.decay = V::splat(0.0).sub(number(decay_scale).exp().mul(step)).exp().lowest();
            token.beta = V::splat((*beta.row::<X>(index).add(head)).widen()).sigmoid().lowest();
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load_key<V: Vector>(&self, head: usize, index: usize, to: *mut f32) {
        let GatedDeltaRule { key_heads, key_dim, qkv, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let key = qkv.row::<X>(index).add((key_heads + self.key_head(head)) * key_dim);
            normalise::<V, X>(key, to, key_dim, 1.0);
        }
    }

    /// The key head of a value head.
    fn key_head(&self, head: usize) -> usize {
        head / (self.op.value_heads / self.op.key_heads)
    }

    /// Find the value that a state has for a token's key.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn recall<V: Vector>(&self, state: *const f32, token: &Token) {
        let value_dim = self.op.value_dim;
        let mut at = 0;
        // SAFETY: as the caller promises.
        unsafe {
            while V::ACCUMULATORS >= WIDE && at + WIDE * LANES <= value_dim {
                self.recall_part::<V, WIDE>(state, token, at, WIDE * LANES);
                at += WIDE * LANES;
            }
            while at < value_dim {
                self.recall_part::<V, 1>(state, token, at, value_dim - at);
                at += LANES;
            }
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn recall_part<V: Vector, const COUNT: usize>(
        &self,
        state: *const f32,
        token: &Token,
        at: usize,
        left: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut sums = [V::splat(0.0); COUNT];
            for key in 0..self.op.key_dim {
                let (state, factor) = (state.add(key * self.op.value_dim + at), V::splat(*token.key.add(key)));
                for (index, sum) in sums.iter_mut().enumerate() {
                    let numbers = f32::load_up_to::<V>(state.add(index * LANES), left - index * LANES);
                    *sum = factor.mul_add(numbers, *sum);
                }
            }
            for (index, sum) in sums.into_iter().enumerate() {
                sum.store(token.recalled.add(at + index * LANES));
            }
        }
    }

    /// Let the state forget and learn, and write what it then has for the query; `FOLLOWED`, also find what it has for
    /// the next key, which saves a pass through the state.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance_all<V: Vector, const FOLLOWED: bool>(
        &self,
        head: usize,
        index: usize,
        token: &Token,
        from: *const f32,
        to: *mut f32,
    ) {
        let GatedDeltaRule { key_heads, key_dim, value_dim, qkv, out, .. } = *self.op;
        let mut at = 0;
        // SAFETY: as the caller promises.
        unsafe {
            let value = qkv.row::<X>(index).add(2 * key_heads * key_dim + head * value_dim);
            let columns = Columns { value, from, to, out: out.row::<X>(index).add(head * value_dim) };
            while V::ACCUMULATORS >= WIDE && at + WIDE * LANES <= value_dim {
                self.advance::<V, WIDE, FOLLOWED>(token, columns.from(at), at, WIDE * LANES);
                at += WIDE * LANES;
            }
            while at < value_dim {
                self.advance::<V, 1, FOLLOWED>(token, columns.from(at), at, value_dim - at);
                at += LANES;
            }
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance<V: Vector, const COUNT: usize, const FOLLOWED: bool>(
        &self,
        token: &Token,
        columns: Columns<X>,
        at: usize,
        left: usize,
    ) {
        let Columns { value, from, to, out } = columns;
        let left_at = |index: usize| left - index * LANES;
        // SAFETY: as the caller promises.
        unsafe {
            let (decay, beta) = (V::splat(token.decay), V::splat(token.beta));
            let mut learnt = [V::splat(0.0); COUNT];
            for (index, learnt) in learnt.iter_mut().enumerate() {
                let known = V::load(token.recalled.add(at + index * LANES)).mul(decay);
                *learnt = X::load_up_to::<V>(value.add(index * LANES), left_at(index)).sub(known).mul(beta);
            }
            let (mut sums, mut recalled) = ([V::splat(0.0); COUNT], [V::splat(0.0); COUNT]);
            for key in 0..self.op.key_dim {
                let (from, to) = (from.add(key * self.op.value_dim), to.add(key * self.op.value_dim));
                let query = V::splat(*token.query.add(key));
                let next_key = if FOLLOWED { V::splat(*token.next_key.add(key)) } else { query };
                let key = V::splat(*token.key.add(key));
                for index in 0..COUNT {
                    let old = f32::load_up_to::<V>(from.add(index * LANES), left_at(index));
                    let new = key.mul_add(learnt[index], old.mul(decay));
                    f32::store_up_to(new, to.add(index * LANES), left_at(index));
                    sums[index] = query.mul_add(new, sums[index]);
                    if FOLLOWED {
                        recalled[index] = next_key.mul_add(new, recalled[index]);
                    }
                }
            }
            for index in 0..COUNT {
                X::store_up_to(sums[index], out.add(index * LANES), left_at(index));
                if FOLLOWED {
                    recalled[index].store(token.recalled.add(at + index * LANES));
                }
            }
        }
    }
}

/// Vectors of values at once, where registers have room for three numbers of each.
const WIDE: usize = 8;

/// A token's value, a head's state before and after the token, and the place of its output, from a column on.
#[derive(Clone, Copy)]
struct Columns<X> {
    value: *const X,
    from: *const f32,
    to: *mut f32,
    out: *mut X,
}

impl<X: Copy> Columns<X> {
    fn from(&self, at: usize) -> Self {
        Self {
            value: self.value.wrapping_add(at),
            from: self.from.wrapping_add(at),
            to: self.to.wrapping_add(at),
            out: self.out.wrapping_add(at),
        }
    }
}

/// Write `scale * x / |x|`.
///
/// # Safety
///
/// See `Kernel::run`; there are `count` numbers, and room for them.
#[inline(always)]
unsafe fn normalise<V: Vector, X: Storage>(x: *const X, to: *mut f32, count: usize, scale: f32) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut squares = V::splat(0.0);
        for at in (0..count).step_by(LANES) {
            let x: V = X::load_up_to(x.add(at), count - at);
            squares = x.mul_add(x, squares);
        }
        let factor = V::splat(scale / (squares.sum() + EPSILON).sqrt());
        for at in (0..count).step_by(LANES) {
            let x: V = X::load_up_to(x.add(at), count - at);
            f32::store_up_to(x.mul(factor), to.add(at), count - at);
        }
    }
}
