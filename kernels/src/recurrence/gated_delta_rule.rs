//! The gated delta rule (arXiv 2412.06464): a state is a matrix from keys to values, which forgets by a factor, and
//! learns the difference between a token's value and the one that it has for the token's key. Kimi's has a factor for
//! each dimension of the keys (arXiv 2510.26692).
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::with_exposed_provenance;

use pyo3::prelude::*;

use super::{RowArrays, StateRows, States, Steps, heads_a_group};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::memory::scratch;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype, prefetch};

/// Added to the sum of squares of a query or key that is normalised.
const EPSILON: f32 = 1e-6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedDeltaRule {
    tokens: usize,
    key_heads: usize,
    value_heads: usize,
    /// Whether adjacent value heads have different key heads, and not the same one.
    is_tiled: bool,
    key_dim: usize,
    value_dim: usize,
    /// A row is a token: all queries, all keys, all values.
    qkv: Matrix,
    /// A row is a token: a number for each value head, or `decays_a_head`.
    decay: Matrix,
    decays_a_head: usize,
    /// A row is a token: a number for each value head.
    beta: Matrix,
    /// Address of a float32 for each value head.
    decay_scale: usize,
    /// Address of as many float32 as a token has in `decay`.
    decay_bias: usize,
    /// The greatest share of a difference that a state learns.
    greatest_share: f32,
    /// The logarithm of the strongest decay, if there is one.
    strongest_decay: Option<f32>,
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
    is_tiled: bool,
    greatest_share: f32,
    strongest_decay: Option<f32>,
    out: Array,
) -> PyResult<()> {
    let [_, value_heads, key_dim, value_dim] = states.dimensions("states")?;
    heads_a_group(value_heads, key_heads)?;
    let (dtype, [tokens, of_decay]) = (qkv.dtype("qkv")?, decay.dimensions("decay")?);
    let decays_a_head = if of_decay == value_heads { 1 } else { key_dim };
    let op = GatedDeltaRule {
        tokens,
        key_heads,
        value_heads,
        is_tiled,
        key_dim,
        value_dim,
        qkv: qkv.matrix("qkv", [tokens, 2 * key_heads * key_dim + value_heads * value_dim])?,
        decay: decay.matrix_of("decay", dtype, [tokens, decays_a_head * value_heads])?,
        decays_a_head,
        beta: beta.matrix_of("beta", dtype, [tokens, value_heads])?,
        decay_scale: decay_scale.elements("decay_scale", "float32", &[value_heads])?,
        decay_bias: decay_bias.elements("decay_bias", "float32", &[decays_a_head * value_heads])?,
        greatest_share,
        strongest_decay,
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
            for_dtype!(self.qkv.dtype, X => {
                if self.decays_a_head == 1 {
                    self.run_as::<X, false>(&steps, extent.tokens, isa, pool);
                } else {
                    self.run_as::<X, true>(&steps, extent.tokens, isa, pool);
                }
            });
        }
        Ok(())
    }
}

impl GatedDeltaRule {
    /// # Safety
    ///
    /// See `Op::run`; qkv is made of X.
    unsafe fn run_as<X: Storage, const MANY: bool>(&self, steps: &Steps<'_>, tokens: usize, isa: Isa, pool: &mut Pool) {
        let kernel = Head::<X, MANY> { op: self, steps, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, self.value_heads, self.key_dim * self.value_dim * tokens, isa, pool, &|_| {}) }
    }

    /// Floats of a head's state.
    fn size(&self) -> usize {
        self.key_dim * self.value_dim
    }
}

/// A value head; `MANY`, it has a decay for each dimension of its keys.
struct Head<'a, X, const MANY: bool> {
    op: &'a GatedDeltaRule,
    steps: &'a Steps<'a>,
    elements: PhantomData<X>,
}

/// Tokens whose queries and keys are loaded together, so that some columns of a state stay in the L1 cache for them.
const BATCH: usize = 32;
/// Vectors of values at once, for one token: a state is read in one piece.
const WIDE: usize = 8;
/// The same for several tokens.
const NARROW: usize = 2;

/// Floats from a number of a state to what is prefetched when it is first read: a page, where processors' own
/// prefetching ends. It takes a fourth off the time of 32 rows of one token.
const AHEAD: usize = 1024;

/// Some tokens of one head.
struct Batch {
    /// Normalised, and scaled; `key_dim` for each token.
    queries: *mut f32,
    /// Normalised; like the two below, also that of the following token, unless the row ends.
    keys: *mut f32,
    /// The keys times the decays.
    faded_keys: *mut f32,
    /// The factors by which the state forgets, one or `key_dim` for each token.
    decays: *mut f32,
    /// The value that the state has for the next key once it has forgotten.
    recalled: *mut f32,
    /// The shares of the differences that the state learns.
    betas: [f32; BATCH],
    tokens: Range<usize>,
    /// Whether the row ends with them.
    is_last: bool,
}

impl<X: Storage, const MANY: bool> Kernel for Head<'_, X, MANY> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, head: usize) {
        let GatedDeltaRule { key_dim, value_dim, .. } = *self.op;
        let (queries, keys, size) = (BATCH * key_dim, (BATCH + 1) * key_dim, self.op.size());
        let values = value_dim.next_multiple_of(LANES);
        let memory = scratch::of_thread(queries + 3 * keys + values + size);
        // SAFETY: as the caller promises; there is so much memory.
        unsafe {
            let mut batch = Batch {
                queries: memory,
                keys: memory.add(queries),
                faded_keys: memory.add(queries + keys),
                decays: memory.add(queries + 2 * keys),
                recalled: memory.add(queries + 3 * keys),
                betas: [0.0; BATCH],
                tokens: 0..0,
                is_last: false,
            };
            let dropped = memory.add(queries + 3 * keys + values);
            for row in self.steps.rows() {
                let to = row.destination.map_or(dropped, |state| state.add(head * size));
                let mut from = to.cast_const();
                match row.source {
                    Some(state) => from = state.add(head * size),
                    None => to.write_bytes(0, size),
                }
                if row.tokens.is_empty() {
                    std::ptr::copy(from, to, size);
                }
                for start in row.tokens.clone().step_by(BATCH) {
                    batch.tokens = start..row.tokens.end.min(start + BATCH);
                    batch.is_last = batch.tokens.end == row.tokens.end;
                    self.load::<V>(head, &mut batch);
                    self.pass::<V>(head, &batch, start == row.tokens.start, from, to);
                    from = to;
                }
            }
        }
    }
}

impl<X: Storage, const MANY: bool> Head<'_, X, MANY> {
    /// Load all of the tokens but their values.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, head: usize, batch: &mut Batch) {
        let GatedDeltaRule { key_heads, value_heads, is_tiled, key_dim, qkv, beta, greatest_share, .. } = *self.op;
        let key_head = if is_tiled { head % key_heads } else { head / (value_heads / key_heads) };
        #[expect(clippy::cast_precision_loss, reason = "no head is as wide as 2^24")]
        let scale = 1.0 / (key_dim as f32).sqrt();
        // SAFETY: as the caller promises.
        unsafe {
            for (index, token) in batch.tokens.clone().enumerate() {
                let query = qkv.row::<X>(token).add(key_head * key_dim);
                normalise::<V, X>(query, batch.queries.add(index * key_dim), key_dim, scale);
                let share = V::splat((*beta.row::<X>(token).add(head)).widen()).sigmoid();
                batch.betas[index] = share.mul(V::splat(greatest_share)).lowest();
            }
            let with_next = batch.tokens.start..batch.tokens.end + usize::from(!batch.is_last);
            for (index, token) in with_next.enumerate() {
                let key = qkv.row::<X>(token).add((key_heads + key_head) * key_dim);
                normalise::<V, X>(key, batch.keys.add(index * key_dim), key_dim, 1.0);
                self.fade::<V>(head, token, index, batch);
            }
        }
    }

    /// Find the decays of a token, and its key after them.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn fade<V: Vector>(&self, head: usize, token: usize, index: usize, batch: &Batch) {
        let GatedDeltaRule { key_dim, decay, decay_scale, decay_bias, strongest_decay, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let rate = V::splat(*with_exposed_provenance::<f32>(decay_scale).add(head)).exp();
            let decays_of = |step: V| match strongest_decay {
                None => step.softplus().mul(V::splat(0.0).sub(rate)).exp(),
                Some(strongest) => step.mul(rate).sigmoid().mul(V::splat(strongest)).exp(),
            };
            let first = if MANY { head * key_dim } else { head };
            let step = decay.row::<X>(token).add(first);
            let bias = with_exposed_provenance::<f32>(decay_bias).add(first);
            let mut decays = decays_of(V::splat((*step).widen()).add(V::splat(*bias)));
            if !MANY {
                *batch.decays.add(index) = decays.lowest();
            }
            for at in (0..key_dim).step_by(LANES) {
                let (place, left) = (index * key_dim + at, key_dim - at);
                if MANY {
                    let step = X::load_up_to::<V>(step.add(at), left).add(f32::load_up_to(bias.add(at), left));
                    decays = decays_of(step);
                    f32::store_up_to(decays, batch.decays.add(place), left);
                }
                let key: V = f32::load_up_to(batch.keys.add(place), left);
                f32::store_up_to(key.mul(decays), batch.faded_keys.add(place), left);
            }
        }
    }

    /// Let the tokens pass through all columns of the state.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn pass<V: Vector>(&self, head: usize, batch: &Batch, is_first: bool, from: *const f32, to: *mut f32) {
        let GatedDeltaRule { value_dim, .. } = *self.op;
        let mut columns = Columns { head, at: 0, left: 0, from, to, is_first };
        let is_wide = V::ACCUMULATORS >= 2 * WIDE && batch.tokens.len() == 1;
        // SAFETY: as the caller promises.
        unsafe {
            while is_wide && columns.at + WIDE * LANES <= value_dim {
                columns.left = WIDE * LANES;
                self.pass_columns::<V, WIDE>(batch, &columns);
                columns.at += WIDE * LANES;
            }
            while V::ACCUMULATORS >= 8 * NARROW && columns.at + NARROW * LANES <= value_dim {
                columns.left = NARROW * LANES;
                self.pass_columns::<V, NARROW>(batch, &columns);
                columns.at += NARROW * LANES;
            }
            while columns.at + LANES <= value_dim {
                columns.left = LANES;
                self.pass_columns::<V, 1>(batch, &columns);
                columns.at += LANES;
            }
            if columns.at < value_dim {
                columns.left = value_dim - columns.at;
                self.pass_columns::<V, 1>(batch, &columns);
            }
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn pass_columns<V: Vector, const COUNT: usize>(&self, batch: &Batch, columns: &Columns) {
        let last = batch.tokens.len() - 1;
        let mut from = columns.from;
        // SAFETY: as the caller promises.
        unsafe {
            if columns.is_first {
                self.recall::<V, COUNT>(batch, columns);
            }
            for index in 0..=last {
                if index < last || !batch.is_last {
                    self.advance::<V, COUNT, true>(batch, columns, index, from);
                } else {
                    self.advance::<V, COUNT, false>(batch, columns, index, from);
                }
                from = columns.to;
            }
        }
    }

    /// Find the value that a state has for the first key once it has forgotten.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn recall<V: Vector, const COUNT: usize>(&self, batch: &Batch, columns: &Columns) {
        let Columns { at, left, from, .. } = *columns;
        // SAFETY: as the caller promises.
        unsafe {
            let mut sums = [V::splat(0.0); COUNT];
            for key in 0..self.op.key_dim {
                prefetch(from.wrapping_add(key * self.op.value_dim + at + AHEAD).addr(), size_of::<V>() * COUNT);
                let (state, factor) = (from.add(key * self.op.value_dim + at), V::splat(*batch.faded_keys.add(key)));
                for (index, sum) in sums.iter_mut().enumerate() {
                    let numbers = f32::load_up_to::<V>(state.add(index * LANES), left - index * LANES);
                    *sum = factor.mul_add(numbers, *sum);
                }
            }
            for (index, sum) in sums.into_iter().enumerate() {
                sum.store(batch.recalled.add(at + index * LANES));
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
    unsafe fn advance<V: Vector, const COUNT: usize, const FOLLOWED: bool>(
        &self,
        batch: &Batch,
        columns: &Columns,
        index: usize,
        from: *const f32,
    ) {
        let GatedDeltaRule { key_heads, key_dim, value_dim, qkv, out, .. } = *self.op;
        let Columns { head, at, left, to, .. } = *columns;
        let left_at = |vector: usize| left - vector * LANES;
        // SAFETY: as the caller promises.
        unsafe {
            let place = head * value_dim + at;
            let token = batch.tokens.start + index;
            let (value, out) =
                (qkv.row::<X>(token).add(2 * key_heads * key_dim + place), out.row::<X>(token).add(place));
            let (queries, keys) = (batch.queries.add(index * key_dim), batch.keys.add(index * key_dim));
            let recalled_at = |vector: usize| batch.recalled.add(at + vector * LANES);
            let beta = V::splat(batch.betas[index]);
            let mut learnt = [beta; COUNT];
            for (vector, learnt) in learnt.iter_mut().enumerate() {
                let known = V::load(recalled_at(vector));
                *learnt = X::load_up_to::<V>(value.add(vector * LANES), left_at(vector)).sub(known).mul(beta);
            }
            let faded_keys = batch.faded_keys.add((index + 1) * key_dim);
            let decays = batch.decays.add(if MANY { index * key_dim } else { index });
            let mut decay = V::splat(*decays);
            let (mut sums, mut recalled) = ([V::splat(0.0); COUNT], [V::splat(0.0); COUNT]);
            for number in 0..key_dim {
                let (from, to) = (from.add(number * value_dim + at), to.add(number * value_dim + at));
                let (query, key) = (V::splat(*queries.add(number)), V::splat(*keys.add(number)));
                let next_key = if FOLLOWED { V::splat(*faded_keys.add(number)) } else { key };
                if MANY {
                    decay = V::splat(*decays.add(number));
                }
                for vector in 0..COUNT {
                    let old = f32::load_up_to::<V>(from.add(vector * LANES), left_at(vector));
                    let new = key.mul_add(learnt[vector], old.mul(decay));
                    f32::store_up_to(new, to.add(vector * LANES), left_at(vector));
                    sums[vector] = query.mul_add(new, sums[vector]);
                    if FOLLOWED {
                        recalled[vector] = next_key.mul_add(new, recalled[vector]);
                    }
                }
            }
            for vector in 0..COUNT {
                X::store_up_to(sums[vector], out.add(vector * LANES), left_at(vector));
                if FOLLOWED {
                    recalled[vector].store(recalled_at(vector));
                }
            }
        }
    }
}

/// Some columns of a head's state.
struct Columns {
    head: usize,
    /// The first column.
    at: usize,
    /// Their number.
    left: usize,
    /// The state before the tokens.
    from: *const f32,
    /// The state after each token.
    to: *mut f32,
    /// Whether the tokens begin a row.
    is_first: bool,
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
