//! The recurrence of Mamba-2 (arXiv 2405.21060): a head's state is a matrix, which forgets by a factor and adds the outer
//! product of a token's input and of what its group has for it.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance;

use pyo3::prelude::*;

use super::{Coming, RowArrays, StateRows, States, Steps, heads_a_group, sums_of};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::memory::scratch;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Rows of a head's state at once, which share what is loaded of b and c. For one token they are read one after the
/// other, as memory is read fastest.
const TOGETHER: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StateSpace {
    tokens: usize,
    heads: usize,
    head_dim: usize,
    state_size: usize,
    heads_a_group: usize,
    /// A row is a token: its heads, one after the other.
    x: Matrix,
    /// A row is a token: its groups, one after the other.
    b: Matrix,
    c: Matrix,
    /// A row is a token: a number for each head.
    step: Matrix,
    /// Addresses of float32 [heads].
    step_bias: usize,
    decay_log: usize,
    skip: usize,
    /// The least and the greatest step.
    step_limits: (f32, f32),
    rows: StateRows,
    states: States,
    out: Matrix,
}

/// The products of the states and c, and the skipped input, in `out`; the states change.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn state_space(
    py: Python<'_>,
    x: Array,
    b: Array,
    c: Array,
    step: Array,
    step_bias: Array,
    decay_log: Array,
    skip: Array,
    rows: RowArrays,
    states: Array,
    step_limits: (f32, f32),
    out: Array,
) -> PyResult<()> {
    let [_, heads, head_dim, state_size] = states.dimensions("states")?;
    let [tokens, width] = b.dimensions("b")?;
    let heads_a_group = heads_a_group(heads, width / state_size.max(1))?;
    let (dtype, of_groups) = (x.dtype("x")?, [tokens, heads / heads_a_group * state_size]);
    let op = StateSpace {
        tokens,
        heads,
        head_dim,
        state_size,
        heads_a_group,
        x: x.matrix("x", [tokens, heads * head_dim])?,
        b: b.matrix_of("b", dtype, of_groups)?,
        c: c.matrix_of("c", dtype, of_groups)?,
        step: step.matrix_of("step", dtype, [tokens, heads])?,
        step_bias: step_bias.elements("step_bias", "float32", &[heads])?,
        decay_log: decay_log.elements("decay_log", "float32", &[heads])?,
        skip: skip.elements("skip", "float32", &[heads])?,
        step_limits,
        rows: rows.read()?,
        states: States::of(&states, &[heads, head_dim, state_size])?,
        out: out.matrix_of("out", dtype, [tokens, heads * head_dim])?,
    };
    let mut arrays = vec![&x, &b, &c, &step, &step_bias, &decay_log, &skip, &states, &out];
    arrays.extend(rows.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

impl Op for StateSpace {
    fn name(&self) -> &'static str {
        "state_space"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.rows.rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises; the steps' indices are valid.
        unsafe {
            let steps = self.rows.steps(extent, &self.states)?;
            for_dtype!(self.x.dtype, X => self.run_as::<X>(&steps, extent.tokens, isa, pool));
        }
        Ok(())
    }
}

impl StateSpace {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, steps: &Steps<'_>, tokens: usize, isa: Isa, pool: &mut Pool) {
        let kernel = Head::<X> { op: self, steps, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, self.heads, self.size() * tokens, isa, pool, &|_| {}) }
    }

    /// Floats of a head's state.
    fn size(&self) -> usize {
        self.head_dim * self.state_size
    }
}

struct Head<'a, X> {
    op: &'a StateSpace,
    steps: &'a Steps<'a>,
    elements: PhantomData<X>,
}

/// The numbers of one token and head.
struct Token {
    /// The input times the step.
    x: *mut f32,
    b: *mut f32,
    c: *mut f32,
    /// For each row of the state sixteen sums, which make its product with c.
    sums: *mut f32,
    /// The factor by which the state forgets.
    decay: f32,
    /// The same head's state for the next row, behind the last token.
    coming: Coming,
}

impl<X: Storage> Kernel for Head<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, head: usize) {
        let StateSpace { head_dim, state_size, .. } = *self.op;
        let (of_head, of_group) = (head_dim.next_multiple_of(LANES), state_size.next_multiple_of(LANES));
        let memory = scratch::of_thread(of_head * (1 + LANES) + 2 * of_group + self.op.size());
        // SAFETY: as the caller promises; there is so much memory.
        unsafe {
            let sums = memory.add(of_head + 2 * of_group);
            let mut token = Token {
                x: memory,
                b: memory.add(of_head),
                c: memory.add(of_head + of_group),
                sums,
                decay: 0.0,
                coming: Coming(None),
            };
            sums.write_bytes(0, of_head * LANES);
            let dropped = sums.add(of_head * LANES);
            for row in self.steps.rows() {
                let to = row.destination.map_or(dropped, |state| state.add(head * self.op.size()));
                let mut from = to.cast_const();
                match row.source {
                    Some(state) => from = state.add(head * self.op.size()),
                    None => to.write_bytes(0, self.op.size()),
                }
                if row.tokens.is_empty() {
                    std::ptr::copy(from, to, self.op.size());
                }
                let coming = row.coming.from(head * self.op.size());
                for index in row.tokens.clone() {
                    self.load::<V>(head, index, &mut token);
                    token.coming = if index + 1 == row.tokens.end { coming } else { Coming(None) };
                    let together = if row.tokens.len() == 1 { 0 } else { head_dim - head_dim % TOGETHER };
                    for at in (0..together).step_by(TOGETHER) {
                        self.advance::<V, TOGETHER>(&token, from, to, at);
                    }
                    for at in together..head_dim {
                        self.advance::<V, 1>(&token, from, to, at);
                    }
                    self.finish::<V>(head, index, &token);
                    from = to;
                }
            }
        }
    }
}

impl<X: Storage> Head<'_, X> {
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, head: usize, index: usize, token: &mut Token) {
        let StateSpace { head_dim, state_size, heads_a_group, x, b, c, step, .. } = *self.op;
        let (least, most) = self.op.step_limits;
        // SAFETY: as the caller promises.
        unsafe {
            let number = |address: usize| V::splat(*with_exposed_provenance::<f32>(address).add(head));
            let step = V::splat((*step.row::<X>(index).add(head)).widen()).add(number(self.op.step_bias)).softplus();
            let step = V::splat(least).max(V::splat(most).min(step)); // in this order, NaN stays NaN
            token.decay = V::splat(0.0).sub(number(self.op.decay_log).exp().mul(step)).exp().lowest();
            let group = head / heads_a_group * state_size;
            load_scaled(x.row::<X>(index).add(head * head_dim), token.x, head_dim, step);
            load_scaled(b.row::<X>(index).add(group), token.b, state_size, V::splat(1.0));
            load_scaled(c.row::<X>(index).add(group), token.c, state_size, V::splat(1.0));
        }
    }

    /// Let some rows of the state forget and learn, and sum up their products with c.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance<V: Vector, const COUNT: usize>(&self, token: &Token, from: *const f32, to: *mut f32, at: usize) {
        let state_size = self.op.state_size;
        // SAFETY: as the caller promises.
        unsafe {
            let (from, to) = (from.add(at * state_size), to.add(at * state_size));
            let decay = V::splat(token.decay);
            let mut rows = Rows { from, to, state_size, decay, x: [decay; COUNT], sums: [V::splat(0.0); COUNT] };
            for (index, x) in rows.x.iter_mut().enumerate() {
                *x = V::splat(*token.x.add(at + index));
            }
            token.coming.prefetch(at * state_size, COUNT * state_size);
            let whole = state_size - state_size % LANES;
            for column in (0..whole).step_by(LANES) {
                rows.advance(token, column, LANES);
            }
            if whole < state_size {
                rows.advance(token, whole, state_size - whole);
            }
            for (index, sum) in rows.sums.into_iter().enumerate() {
                sum.store(token.sums.add((at + index) * LANES));
            }
        }
    }

    /// Write the output.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, head: usize, index: usize, token: &Token) {
        let StateSpace { head_dim, x, out, skip, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let skip = V::splat(*with_exposed_provenance::<f32>(skip).add(head));
            let (x, out) = (x.row::<X>(index).add(head * head_dim), out.row::<X>(index).add(head * head_dim));
            for at in (0..head_dim).step_by(LANES) {
                let skipped = X::load_up_to::<V>(x.add(at), head_dim - at).mul(skip);
                X::store_up_to(sums_of::<V>(token.sums.add(at * LANES)).add(skipped), out.add(at), head_dim - at);
            }
        }
    }
}

/// Some rows of a head's state.
struct Rows<V, const COUNT: usize> {
    from: *const f32,
    to: *mut f32,
    state_size: usize,
    decay: V,
    /// The input of each row times the step.
    x: [V; COUNT],
    sums: [V; COUNT],
}

impl<V: Vector, const COUNT: usize> Rows<V, COUNT> {
    /// Advance up to sixteen columns.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance(&mut self, token: &Token, column: usize, left: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let (b, c) = (V::load(token.b.add(column)), V::load(token.c.add(column)));
            for index in 0..COUNT {
                let place = index * self.state_size + column;
                let old: V = f32::load_up_to(self.from.add(place), left);
                let new = self.x[index].mul_add(b, old.mul(self.decay));
                f32::store_up_to(new, self.to.add(place), left);
                self.sums[index] = new.mul_add(c, self.sums[index]);
            }
        }
    }
}

/// Write `x * factor`, and zeros up to a whole number of vectors.
///
/// # Safety
///
/// See `Kernel::run`; there are `count` numbers, and room for whole vectors.
#[inline(always)]
unsafe fn load_scaled<V: Vector, X: Storage>(x: *const X, to: *mut f32, count: usize, factor: V) {
    for at in (0..count).step_by(LANES) {
        // SAFETY: as the caller promises.
        unsafe { X::load_up_to::<V>(x.add(at), count - at).mul(factor).store(to.add(at)) };
    }
}
