//! Chooses the tokens that each token attends to (sparse attention of `DeepSeek` V3.2, arXiv 2512.02556): those with the
//! largest scores of an index. A choice depends on its token alone, neither on other tokens nor on the number of threads.
//! Knows no attention, which reads the cells written here as a block table with one token a block.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Batch, BatchArrays, NO_WINDOW, Sequences};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::kv_layer::KvLayer;
use crate::memory::scratch::Scratch;
use crate::op::{Extent, Matrix, Op, OutOfRange};
use crate::threads::Pool;
use crate::vector::{self, Kernel, LANES, Storage, Vector, for_dtype};

/// Positions per task when threads score them.
const CHUNK: usize = 512;
/// Positions that are multiplied with a part of a query once it is loaded.
const KEYS_AT_ONCE: usize = 4;

thread_local! {
    static QUERIES: RefCell<Scratch> = RefCell::default();
    static POSITIONS: RefCell<Vec<u32>> = RefCell::default();
}

/// The choice of `count` cells for every token, or of all up to its own if these are no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectTokens {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// A row is a token: its heads, one after the other.
    pub(crate) query: Matrix,
    /// A number for each head of a token.
    pub(crate) weights: Matrix,
    /// One head of keys; values are not read.
    pub(crate) keys: KvLayer,
    pub(crate) batch: Batch,
    pub(crate) count: usize,
    /// Addresses of the chosen cells, in the order of their positions, int32 `[tokens, count]`, and of their numbers,
    /// int32 `[tokens]`.
    pub(crate) cells: usize,
    pub(crate) lengths: usize,
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn select_tokens(
    py: Python<'_>,
    query: Array,
    weights: Array,
    key_cache: Array,
    metadata: BatchArrays,
    count: usize,
    cells: Array,
    lengths: Array,
) -> PyResult<()> {
    let shape @ [tokens, heads, size] = query.dimensions("query")?;
    let keys = KvLayer::of(&key_cache, &key_cache, size)?;
    if keys.kv_heads != 1 || heads == 0 || count == 0 {
        return Err(PyValueError::new_err(format!(
            "{heads} heads, {} heads of keys and {count} tokens to choose: give at least 1 head, 1 head of keys and at \
             least 1 token",
            keys.kv_heads
        )));
    }
    if keys.num_blocks.checked_mul(keys.block_stride).is_none_or(|cells| cells > i32::MAX as usize) {
        return Err(PyValueError::new_err(format!(
            "{} blocks, {} tokens apart: cells have numbers up to 2,147,483,647",
            keys.num_blocks, keys.block_stride
        )));
    }
    let op = SelectTokens {
        tokens,
        heads,
        query: query.heads("query", query.dtype("query")?, shape)?,
        weights: weights.matrix("weights", [tokens, heads])?,
        keys,
        batch: metadata.read()?,
        count,
        cells: cells.elements("cells", "int32", &[tokens, count])?,
        lengths: lengths.elements("lengths", "int32", &[tokens])?,
    };
    let mut arrays = vec![&query, &weights, &key_cache, &cells, &lengths];
    arrays.extend(metadata.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

/// The index of a token in the step, its row, and the number of positions up to its own.
#[derive(Clone, Copy)]
struct Token {
    row: usize,
    index: usize,
    length: usize,
}

impl Op for SelectTokens {
    fn name(&self) -> &'static str {
        "select_tokens"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.batch.rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let sequences = unsafe { self.batch.sequences(extent.rows) };
        sequences.check(extent.tokens, &self.keys, self.batch.num_slots, NO_WINDOW)?;
        let (mut short, mut long) = (Vec::new(), Vec::new());
        for (row, starts) in sequences.query_starts.windows(2).enumerate() {
            let (start, end) = (starts[0] as usize, starts[1] as usize);
            for index in start..end {
                let token = Token { row, index, length: sequences.lengths[row] as usize - (end - index - 1) };
                if token.length <= self.count { short.push(token) } else { long.push(token) }
            }
        }
        // SAFETY: as the caller promises; the cells are in the cache, and each token has memory of its own.
        unsafe {
            pool.run(short.len(), &|index| {
                let token = &short[index];
                self.write(&sequences, token, 0..token.length as u32);
            });
            for_dtype!(self.keys.dtype, C => self.choose::<C>(&sequences, &long, isa, pool));
        }
        Ok(())
    }
}

impl SelectTokens {
    /// # Safety
    ///
    /// See `Op::run`; the cache is made of C.
    unsafe fn choose<C: Storage>(&self, sequences: &Sequences<'_>, tokens: &[Token], isa: Isa, pool: &mut Pool) {
        // As many tokens at once as there are threads: their scores stay in the cache.
        let num_at_once = pool.num_threads();
        let longest = tokens.iter().map(|token| token.length).max().unwrap_or(0);
        let mut scratch = std::mem::take(&mut pool.scratch);
        let address = scratch.bytes(num_at_once * longest * size_of::<f32>()).as_mut_ptr().expose_provenance();
        let memory = |index: usize| with_exposed_provenance_mut::<f32>(address).wrapping_add(index * longest);
        for tokens in tokens.chunks(num_at_once) {
            let chunks = longest.div_ceil(CHUNK);
            pool.run(tokens.len() * chunks, &|task| {
                let (index, first) = (task / chunks, task % chunks * CHUNK);
                let token = &tokens[index];
                let positions = first.min(token.length)..(first + CHUNK).min(token.length);
                let to = memory(index).wrapping_add(positions.start);
                let scores = Scores::<C> { op: self, sequences, token, positions, to, element: PhantomData };
                // SAFETY: as the caller promises; a task writes the scores of its own positions.
                unsafe { vector::run(isa, &scores, 0) };
            });
            pool.run(tokens.len(), &|index| {
                let token = &tokens[index];
                // SAFETY: as above; the scores were written before.
                unsafe {
                    let scores = std::slice::from_raw_parts(memory(index).cast_const(), token.length);
                    POSITIONS.with_borrow_mut(|positions| {
                        self.write(sequences, token, best(scores, self.count, positions));
                    });
                }
            });
        }
        pool.scratch = scratch;
    }

    /// Write the cells of some positions of a token's sequence, at most `count`.
    ///
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn write(&self, sequences: &Sequences<'_>, token: &Token, positions: impl Iterator<Item = u32>) {
        let KvLayer { block_size, block_stride, .. } = self.keys;
        let table = sequences.table(token.row);
        let cells = with_exposed_provenance_mut::<i32>(self.cells).wrapping_add(token.index * self.count);
        let mut length = 0;
        for position in positions {
            let (block, offset) = (position as usize / block_size, position as usize % block_size);
            // SAFETY: as the caller promises.
            unsafe { cells.add(length).write((table[block] as usize * block_stride + offset) as i32) };
            length += 1;
        }
        let lengths = with_exposed_provenance_mut::<i32>(self.lengths);
        // SAFETY: as above.
        unsafe { lengths.add(token.index).write(length as i32) };
    }
}

/// The positions of the largest scores, in order. Of equal scores the first wins.
fn best<'a>(scores: &[f32], count: usize, positions: &'a mut Vec<u32>) -> impl Iterator<Item = u32> + use<'a> {
    positions.clear();
    positions.extend(0..scores.len() as u32);
    positions
        .select_nth_unstable_by(count - 1, |&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    positions.truncate(count);
    positions.sort_unstable();
    positions.iter().copied()
}

/// The scores of some positions: the sum over the heads of `weight * max(query @ key, 0)`, each in one fixed order.
struct Scores<'a, C> {
    op: &'a SelectTokens,
    sequences: &'a Sequences<'a>,
    token: &'a Token,
    positions: Range<usize>,
    to: *mut f32,
    element: PhantomData<C>,
}

// SAFETY: one thread has the part of the memory that is written.
unsafe impl<C> Sync for Scores<'_, C> {}

impl<C: Storage> Kernel for Scores<'_, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        if self.positions.is_empty() {
            return;
        }
        let (size, width) = (self.op.keys.head_dim, self.op.heads.next_multiple_of(LANES));
        let keys_size = size.next_multiple_of(LANES);
        let floats = (size + 1) * width + KEYS_AT_ONCE * keys_size;
        // Calls with a vector stay out of the closure, which is compiled without V's instructions.
        let queries: *mut f32 =
            QUERIES.with_borrow_mut(|queries| queries.bytes(floats * size_of::<f32>()).as_mut_ptr().cast());
        let weights = queries.wrapping_add(size * width);
        let keys = weights.wrapping_add(width);
        let KvLayer { block_size, block_stride, .. } = self.op.keys;
        let table = self.sequences.table(self.token.row);
        // SAFETY: as the caller promises; there is so much memory.
        unsafe {
            self.load_queries(queries, weights, width);
            for (index, first) in self.positions.clone().step_by(KEYS_AT_ONCE).enumerate() {
                let count = KEYS_AT_ONCE.min(self.positions.end - first);
                for number in 0..KEYS_AT_ONCE {
                    // The last key is repeated where there are no more: its scores are not written.
                    let position = first + number.min(count - 1);
                    let cell = table[position / block_size] as usize * block_stride + position % block_size;
                    let (from, to) = (self.op.keys.keys::<C>(cell), keys.add(number * keys_size));
                    for at in (0..size).step_by(LANES) {
                        C::load_up_to::<V>(from.add(at), size - at).store(to.add(at));
                    }
                }
                let scores = score::<V>(queries, weights, keys, [size, keys_size, width]);
                for (number, score) in scores.into_iter().take(count).enumerate() {
                    // No number is the least, and both zeros are equal.
                    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
                    self.to.add(index * KEYS_AT_ONCE + number).write(score);
                }
            }
        }
    }
}

impl<C: Storage> Scores<'_, C> {
    /// Write the queries as `[size, width]`, and the weights; heads beyond the last are zeros.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    unsafe fn load_queries(&self, queries: *mut f32, weights: *mut f32, width: usize) {
        let (size, heads, token) = (self.op.keys.head_dim, self.op.heads, self.token.index);
        // SAFETY: as the caller promises.
        unsafe {
            queries.write_bytes(0, (size + 1) * width);
            for_dtype!(self.op.query.dtype, Q => {
                let from = self.op.query.row::<Q>(token);
                for head in 0..heads {
                    for at in 0..size {
                        queries.add(at * width + head).write(from.add(head * size + at).read_unaligned().widen());
                    }
                }
            });
            for_dtype!(self.op.weights.dtype, W => {
                for head in 0..heads {
                    weights.add(head).write(self.op.weights.row::<W>(token).add(head).read_unaligned().widen());
                }
            });
        }
    }
}

/// # Safety
///
/// See `Kernel::run`; the memory has the sizes of a key, of its room, and of all heads.
#[inline(always)]
unsafe fn score<V: Vector>(
    queries: *const f32,
    weights: *const f32,
    keys: *const f32,
    [size, keys_size, width]: [usize; 3],
) -> [f32; KEYS_AT_ONCE] {
    // SAFETY: as the caller promises.
    unsafe {
        let zero = V::splat(0.0);
        let mut totals = [zero; KEYS_AT_ONCE];
        for head in (0..width).step_by(LANES) {
            let mut sums = [zero; KEYS_AT_ONCE];
            for at in 0..size {
                let query = V::load(queries.add(at * width + head));
                for (number, sum) in sums.iter_mut().enumerate() {
                    *sum = V::splat(*keys.add(number * keys_size + at)).mul_add(query, *sum);
                }
            }
            let weight = V::load(weights.add(head));
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = zero.max(sum).mul_add(weight, *total); // in this order, NaN stays NaN
            }
        }
        totals.map(V::sum)
    }
}
