//! The selective scan of Mamba (arXiv 2312.00752): a channel's state is a vector, each number of which forgets by a
//! factor of its own.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance;

use pyo3::prelude::*;

use super::{RowArrays, StateRows, States, Steps, sums_of};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::memory::scratch;
use crate::op::{Extent, Matrix, Op, OutOfRange, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Channels of a task, a whole number of vectors.
const CHUNK: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectiveScan {
    tokens: usize,
    channels: usize,
    state_size: usize,
    /// A row is a token: a number for each channel.
    x: Matrix,
    step: Matrix,
    /// A row is a token: as many numbers as a channel's state has.
    b: Matrix,
    c: Matrix,
    /// Addresses of a float32 for each channel, and for each number of its state.
    step_bias: usize,
    decay_log: usize,
    skip: usize,
    rows: StateRows,
    states: States,
    out: Matrix,
}

/// The products of the states and c, and the skipped input, in `out`; the states change.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn selective_scan(
    py: Python<'_>,
    x: Array,
    step: Array,
    b: Array,
    c: Array,
    step_bias: Array,
    decay_log: Array,
    skip: Array,
    rows: RowArrays,
    states: Array,
    out: Array,
) -> PyResult<()> {
    let [_, channels, state_size] = states.dimensions("states")?;
    let (dtype, tokens) = (x.dtype("x")?, x.len());
    let op = SelectiveScan {
        tokens,
        channels,
        state_size,
        x: x.matrix("x", [tokens, channels])?,
        step: step.matrix_of("step", dtype, [tokens, channels])?,
        b: b.matrix_of("b", dtype, [tokens, state_size])?,
        c: c.matrix_of("c", dtype, [tokens, state_size])?,
        step_bias: step_bias.elements("step_bias", "float32", &[channels])?,
        decay_log: decay_log.elements("decay_log", "float32", &[channels, state_size])?,
        skip: skip.elements("skip", "float32", &[channels])?,
        rows: rows.read()?,
        states: States::of(&states, &[channels, state_size])?,
        out: out.matrix_of("out", dtype, [tokens, channels])?,
    };
    let mut arrays = vec![&x, &step, &b, &c, &step_bias, &decay_log, &skip, &states, &out];
    arrays.extend(rows.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

impl Op for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective_scan"
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

impl SelectiveScan {
    /// # Safety
    ///
    /// See `Op::run`; x is made of X.
    unsafe fn run_as<X: Storage>(&self, steps: &Steps<'_>, tokens: usize, isa: Isa, pool: &mut Pool) {
        let (chunks, width) = (self.channels.div_ceil(CHUNK), CHUNK * self.state_size * tokens);
        let kernel = Chunk::<X> { op: self, steps, elements: PhantomData };
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, chunks, width, isa, pool, &|_| {}) }
    }
}

struct Chunk<'a, X> {
    op: &'a SelectiveScan,
    steps: &'a Steps<'a>,
    elements: PhantomData<X>,
}

/// A task's memory: a channel's numbers are whole vectors.
struct Memory {
    /// The negated rates of decay, `width` for each channel.
    rates: *mut f32,
    width: usize,
    steps: [f32; CHUNK],
    /// The input of each channel times the step.
    inputs: [f32; CHUNK],
    /// Sixteen sums a channel, which make its product with c.
    sums: [f32; CHUNK * LANES],
}

/// The states of a task's channels, before a token and after it.
struct Channels {
    count: usize,
    from: *const f32,
    to: *mut f32,
}

impl<X: Storage> Kernel for Chunk<'_, X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, part: usize) {
        let SelectiveScan { channels, state_size, .. } = *self.op;
        let (first, width) = (part * CHUNK, state_size.next_multiple_of(LANES));
        let count = CHUNK.min(channels - first);
        let rates = scratch::of_thread(CHUNK * (width + state_size));
        let mut memory = Memory { rates, width, steps: [0.0; CHUNK], inputs: [0.0; CHUNK], sums: [0.0; CHUNK * LANES] };
        // SAFETY: as the caller promises; there is so much memory.
        unsafe {
            let dropped = rates.add(CHUNK * width);
            self.load_rates::<V>(first, count, &memory);
            for row in self.steps.rows() {
                let to = row.destination.map_or(dropped, |state| state.add(first * state_size));
                let mut from = to.cast_const();
                match row.source {
                    Some(state) => from = state.add(first * state_size),
                    None => to.write_bytes(0, count * state_size),
                }
                if row.tokens.is_empty() {
                    std::ptr::copy(from, to, count * state_size);
                }
                row.coming.prefetch(first * state_size, count * state_size);
                for token in row.tokens {
                    self.load_steps::<V>(token, first, count, &mut memory);
                    self.advance::<V>(token, &Channels { count, from, to }, &mut memory);
                    self.finish::<V>(token, first, count, &memory);
                    from = to;
                }
            }
        }
    }
}

impl<X: Storage> Chunk<'_, X> {
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load_rates<V: Vector>(&self, first: usize, count: usize, memory: &Memory) {
        let SelectiveScan { state_size, decay_log, .. } = *self.op;
        for channel in 0..count {
            for at in (0..state_size).step_by(LANES) {
                // SAFETY: as the caller promises.
                unsafe {
                    let from = with_exposed_provenance::<f32>(decay_log).add((first + channel) * state_size + at);
                    let rates = V::splat(0.0).sub(f32::load_up_to::<V>(from, state_size - at).exp());
                    rates.store(memory.rates.add(channel * memory.width + at));
                }
            }
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load_steps<V: Vector>(&self, token: usize, first: usize, count: usize, memory: &mut Memory) {
        for at in (0..count).step_by(LANES) {
            // SAFETY: as the caller promises.
            unsafe {
                let step = X::load_up_to::<V>(self.op.step.row::<X>(token).add(first + at), count - at);
                let bias = with_exposed_provenance::<f32>(self.op.step_bias).add(first + at);
                let step = step.add(f32::load_up_to(bias, count - at)).softplus();
                step.store(memory.steps[at..][..LANES].as_mut_ptr());
                let x = X::load_up_to::<V>(self.op.x.row::<X>(token).add(first + at), count - at);
                x.mul(step).store(memory.inputs[at..][..LANES].as_mut_ptr());
            }
        }
    }

    /// Let the states forget and learn, and sum up their products with c.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance<V: Vector>(&self, token: usize, states: &Channels, memory: &mut Memory) {
        let state_size = self.op.state_size;
        let whole = state_size - state_size % LANES;
        // SAFETY: as the caller promises.
        unsafe {
            for at in (0..whole).step_by(LANES) {
                self.advance_part::<V>(token, states, at, LANES, memory);
            }
            if whole < state_size {
                self.advance_part::<V>(token, states, whole, state_size - whole, memory);
            }
        }
    }

    /// Advance up to sixteen numbers of each state.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn advance_part<V: Vector>(
        &self,
        token: usize,
        states: &Channels,
        at: usize,
        left: usize,
        memory: &mut Memory,
    ) {
        let SelectiveScan { state_size, b, c, .. } = *self.op;
        let Channels { count, from, to } = *states;
        // SAFETY: as the caller promises.
        unsafe {
            let b: V = X::load_up_to(b.row::<X>(token).add(at), left);
            let c: V = X::load_up_to(c.row::<X>(token).add(at), left);
            for channel in 0..count {
                let place = channel * state_size + at;
                let rate = V::load(memory.rates.add(channel * memory.width + at));
                let decay = rate.mul(V::splat(memory.steps[channel])).exp();
                let old: V = f32::load_up_to(from.add(place), left);
                let new = V::splat(memory.inputs[channel]).mul_add(b, old.mul(decay));
                f32::store_up_to(new, to.add(place), left);
                let sums = memory.sums[channel * LANES..][..LANES].as_mut_ptr();
                let before = if at == 0 { V::splat(0.0) } else { V::load(sums) };
                new.mul_add(c, before).store(sums);
            }
        }
    }

    /// Write the output.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, token: usize, first: usize, count: usize, memory: &Memory) {
        let SelectiveScan { x, skip, out, .. } = *self.op;
        for at in (0..count).step_by(LANES) {
            let left = count - at;
            // SAFETY: as the caller promises.
            unsafe {
                let skip = with_exposed_provenance::<f32>(skip).add(first + at);
                let skipped =
                    X::load_up_to::<V>(x.row::<X>(token).add(first + at), left).mul(f32::load_up_to(skip, left));
                let sums = sums_of::<V>(memory.sums[at * LANES..].as_ptr());
                X::store_up_to(sums.add(skipped), out.row::<X>(token).add(first + at), left);
            }
        }
    }
}
