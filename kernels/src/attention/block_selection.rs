//! Chooses the KV blocks that a sparse row attends to: its first ones, its last ones, and the best of the others by the
//! summaries of their keys. The choice depends neither on other rows nor on the number of threads. Knows neither values
//! nor attention itself, which reads the block tables written here.

mod key_summaries;
mod scores;

use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use super::{Batch, BatchArrays, NO_WINDOW, Sequences, check_heads};
use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::kv_layer::KvLayer;
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range};
use crate::threads::Pool;
use crate::vector::{self, LANES, for_dtype};
use key_summaries::Summarise;
pub(super) use key_summaries::{KeySummaries, SummaryKind};
use scores::{Scores, Shares};

/// Blocks per task when threads score them.
const CHUNK: usize = 64;

/// The rows of a step that may leave blocks out, and the number of blocks that they keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SparseRows {
    pub(crate) tokens: usize,
    pub(crate) cache: KvLayer,
    pub(crate) batch: Batch,
    /// Whether a row, of one token, may leave blocks out: int32 `[rows]`.
    pub(crate) is_sparse: Indices,
    pub(crate) budget: Budget,
}

/// Computes, in one layer, the shares of the attention of each row's candidate blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreBlocks {
    pub(crate) rows: SparseRows,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) query: Matrix,
    pub(crate) summaries: KeySummaries,
    /// Address of the shares, summed over the heads: float32 `[rows, max_blocks]`, from the first candidate on.
    pub(crate) shares: usize,
}

/// Writes the batch for attention, by these shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectBlocks {
    pub(crate) rows: SparseRows,
    pub(crate) shares: usize,
    pub(crate) out: Selection,
}

/// Numbers of blocks that a sparse row keeps: a `BlockBudget` of Python.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub(crate) struct Budget {
    pub(crate) num_sink_blocks: usize,
    pub(crate) top_k: usize,
    /// At least 1: the block of the row's token.
    pub(crate) num_recent_blocks: usize,
}

/// Addresses of the batch for attention, in which a row's slot is the row: int32 `[rows, max_blocks]`, `[rows]` and
/// `[rows]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(crate) block_tables: usize,
    pub(crate) slots: usize,
    pub(crate) sequence_lengths: usize,
}

/// A `SparseRows` of Python.
#[derive(FromPyObject)]
pub(crate) struct RowsArrays {
    metadata: BatchArrays,
    is_sparse: Array,
    budget: Budget,
}

impl RowsArrays {
    fn read(&self, cache: KvLayer) -> PyResult<SparseRows> {
        if self.budget.num_recent_blocks == 0 {
            return Err(PyValueError::new_err("no recent block: a token sees at least the one it is in"));
        }
        let batch = self.metadata.read()?;
        let is_sparse = self.is_sparse.indices("is_sparse", &[batch.rows])?;
        Ok(SparseRows { tokens: self.metadata.num_tokens, cache, batch, is_sparse, budget: self.budget })
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.metadata.arrays().into_iter().chain([&self.is_sparse])
    }
}

/// A `KeySummaries` of Python.
#[derive(FromPyObject)]
pub(crate) struct SummaryArrays {
    kind: PyBackedStr,
    vectors: Array,
    known: Array,
}

impl SummaryArrays {
    fn read(&self, cache: KvLayer) -> PyResult<KeySummaries> {
        let (kind, parts) = match &*self.kind {
            "mean" => (SummaryKind::Mean, 1),
            "bounds" => (SummaryKind::Bounds, 2),
            kind => return Err(PyValueError::new_err(format!("no summaries {kind:?} of keys: use mean or bounds"))),
        };
        let shape = [cache.num_blocks, cache.kv_heads, parts, cache.head_dim];
        let address = self.vectors.elements("vectors", cache.dtype.name(), &shape)?;
        let known = self.known.elements("known", "uint8", &[cache.num_blocks])?;
        Ok(KeySummaries { kind, address, known })
    }
}

#[pyfunction]
pub(crate) fn score_blocks(
    py: Python<'_>,
    query: Array,
    key_cache: Array,
    rows: RowsArrays,
    scale: f32,
    summaries: SummaryArrays,
    shares: Array,
) -> PyResult<()> {
    let shape @ [tokens, heads, head_dim] = query.dimensions("query")?;
    let cache = KvLayer::of(&key_cache, &key_cache, head_dim)?;
    check_heads(heads, cache.kv_heads)?;
    let sparse = SparseRows { tokens, ..rows.read(cache)? };
    let op = ScoreBlocks {
        rows: sparse,
        heads,
        scale,
        query: query.heads("query", query.dtype("query")?, shape)?,
        summaries: summaries.read(cache)?,
        shares: shares.elements("shares", "float32", &[sparse.batch.rows, sparse.batch.max_blocks])?,
    };
    let mut arrays = vec![&query, &key_cache, &summaries.vectors, &summaries.known, &shares];
    arrays.extend(rows.arrays());
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

#[pyfunction]
pub(crate) fn select_blocks(
    py: Python<'_>,
    shares: Array,
    key_cache: Array,
    rows: RowsArrays,
    block_tables: Array,
    slots: Array,
    sequence_lengths: Array,
) -> PyResult<()> {
    let [.., head_dim] = key_cache.dimensions::<4>("key_cache")?;
    let sparse = rows.read(KvLayer::of(&key_cache, &key_cache, head_dim)?)?;
    let (num_rows, max_blocks) = (sparse.batch.rows, sparse.batch.max_blocks);
    let op = SelectBlocks {
        rows: sparse,
        shares: shares.elements("shares", "float32", &[num_rows, max_blocks])?,
        out: Selection {
            block_tables: block_tables.elements("block_tables", "int32", &[num_rows, max_blocks])?,
            slots: slots.elements("slots", "int32", &[num_rows])?,
            sequence_lengths: sequence_lengths.elements("sequence_lengths", "int32", &[num_rows])?,
        },
    };
    let mut arrays = vec![&shares, &key_cache, &block_tables, &slots, &sequence_lengths];
    arrays.extend(rows.arrays());
    // SAFETY: as above.
    unsafe { execute(py, op, &arrays) }
}

/// A row that leaves blocks out.
struct SelectingRow<'a> {
    row: usize,
    token: usize,
    table: &'a [i32],
    /// The blocks of which the best are kept.
    candidates: Range<usize>,
}

impl Op for ScoreBlocks {
    fn name(&self) -> &'static str {
        "score_blocks"
    }

    fn capacity(&self) -> Extent {
        self.rows.capacity()
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let (sequences, is_sparse) = unsafe { self.rows.read(extent)? };
        let selecting: Vec<_> =
            (0..is_sparse.len()).filter_map(|row| self.rows.selecting_row(&sequences, is_sparse, row)).collect();
        // SAFETY: as the caller promises; the blocks are in the cache.
        unsafe { for_dtype!(self.rows.cache.dtype, C => self.score::<C>(&selecting, isa, pool)) }
        Ok(())
    }
}

impl Op for SelectBlocks {
    fn name(&self) -> &'static str {
        "select_blocks"
    }

    fn capacity(&self) -> Extent {
        self.rows.capacity()
    }

    unsafe fn run(&self, extent: Extent, _: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let (sequences, is_sparse) = unsafe { self.rows.read(extent)? };
        let mut selecting = Vec::new();
        for row in 0..is_sparse.len() {
            match self.rows.selecting_row(&sequences, is_sparse, row) {
                Some(row) => selecting.push(row),
                // SAFETY: as the caller promises.
                None => unsafe { self.keep_all(&sequences, row) },
            }
        }
        // SAFETY: as the caller promises; each row has shares of its own, and a table.
        pool.run(selecting.len(), &|index| unsafe { self.keep_best(&selecting[index], &sequences) });
        Ok(())
    }
}

impl SparseRows {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.batch.rows }
    }

    /// The batch, and the rows that are sparse.
    ///
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn read<'a>(&self, extent: Extent) -> Result<(Sequences<'a>, &'a [i32]), OutOfRange> {
        // SAFETY: as the caller promises.
        let (sequences, is_sparse) = unsafe { (self.batch.sequences(extent.rows), self.is_sparse.first(extent.rows)) };
        sequences.check(extent.tokens, &self.cache, self.batch.num_slots, NO_WINDOW)?;
        check_range("mark of sparse row", is_sparse, 0..2)?;
        Ok((sequences, is_sparse))
    }

    /// The row, or none if it keeps all blocks.
    fn selecting_row<'a>(
        &self,
        sequences: &'a Sequences<'_>,
        is_sparse: &[i32],
        row: usize,
    ) -> Option<SelectingRow<'a>> {
        let Budget { num_sink_blocks, top_k, num_recent_blocks } = self.budget;
        let num_tokens = sequences.query_starts[row + 1] - sequences.query_starts[row];
        let used = (sequences.lengths[row] as usize).div_ceil(self.cache.block_size);
        let candidates = num_sink_blocks..used.saturating_sub(num_recent_blocks);
        (is_sparse[row] == 1 && num_tokens == 1 && candidates.len() > top_k).then(|| SelectingRow {
            row,
            token: sequences.query_starts[row] as usize,
            table: sequences.table(row),
            candidates,
        })
    }
}

impl ScoreBlocks {
    /// # Safety
    ///
    /// See `Op::run`; the cache is made of C.
    unsafe fn score<C: vector::Storage>(&self, selecting: &[SelectingRow<'_>], isa: Isa, pool: &mut Pool) {
        let summaries = &self.summaries;
        // SAFETY: as the caller promises: nobody else writes to the marks meanwhile.
        let missing = unsafe { summaries.take_missing(selecting.iter().flat_map(SelectingRow::blocks)) };
        let summarise = Summarise::<C>::new(summaries, &self.rows.cache, &missing);
        // SAFETY: as the caller promises; no block is there twice.
        pool.run(missing.len(), &|index| unsafe { vector::run(isa, &summarise, index) });

        // As many rows at once as there are threads: their scores stay in the cache.
        let num_at_once = pool.num_threads();
        let stride = selecting.iter().map(|row| row.candidates.len()).max().unwrap_or(0).next_multiple_of(LANES);
        // The scores of each head, then the shares.
        let row_floats = (self.heads + 1) * stride;
        let mut scratch = std::mem::take(&mut pool.scratch);
        let address = scratch.bytes(num_at_once * row_floats * size_of::<f32>()).as_mut_ptr().expose_provenance();
        let memory =
            |index: usize| with_exposed_provenance_mut::<f32>(address).wrapping_add(index % num_at_once * row_floats);
        for (first, rows) in (0..).step_by(num_at_once).zip(selecting.chunks(num_at_once)) {
            let chunks = stride.div_ceil(CHUNK);
            pool.run(rows.len() * chunks, &|task| {
                let (index, start) = (task / chunks, task % chunks * CHUNK);
                let row = &rows[index];
                let blocks = row.blocks().get(start..).unwrap_or_default();
                let blocks = &blocks[..blocks.len().min(CHUNK)];
                let to = memory(first + index).wrapping_add(start);
                let scores = Scores::<C>::new(self, blocks, row.token, to, stride);
                // SAFETY: as the caller promises; a task writes the scores of its own blocks.
                unsafe { vector::run(isa, &scores, 0) };
            });
            pool.run(rows.len(), &|index| {
                let (row, scores) = (&rows[index], memory(first + index));
                let count = row.candidates.len();
                let to = with_exposed_provenance_mut::<f32>(self.shares);
                let to = to.wrapping_add(row.row * self.rows.batch.max_blocks);
                // SAFETY: as above; the scores were written before, and a row has as many candidates as blocks at most.
                unsafe {
                    vector::run(isa, &Shares { scores, heads: self.heads, count, stride }, 0);
                    to.copy_from_nonoverlapping(scores.wrapping_add(self.heads * stride), count);
                }
            });
        }
        pool.scratch = scratch;
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.heads / self.rows.cache.kv_heads
    }
}

impl SelectBlocks {
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn keep_all(&self, sequences: &Sequences<'_>, row: usize) {
        let length = sequences.lengths[row];
        let used = (length as usize).div_ceil(self.rows.cache.block_size);
        // SAFETY: as the caller promises.
        unsafe {
            self.table(row).copy_from_nonoverlapping(sequences.table(row).as_ptr(), used);
            self.write_row(row, length);
        }
    }

    /// Keep the best blocks, in the order of their positions, so that a row that keeps all gets the same bits as
    /// without a choice. Of equal shares the first wins.
    ///
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn keep_best(&self, selecting_row: &SelectingRow<'_>, sequences: &Sequences<'_>) {
        let SelectingRow { row, table, ref candidates, .. } = *selecting_row;
        let (top_k, block_size) = (self.rows.budget.top_k, self.rows.cache.block_size);
        let shares = with_exposed_provenance::<f32>(self.shares).wrapping_add(row * self.rows.batch.max_blocks);
        // SAFETY: as the caller promises.
        let shares = unsafe { std::slice::from_raw_parts(shares, candidates.len()) };
        let mut best: Vec<u32> = (0..candidates.len() as u32).collect();
        if top_k > 0 {
            best.select_nth_unstable_by(top_k - 1, |&a, &b| {
                shares[b as usize].total_cmp(&shares[a as usize]).then(a.cmp(&b))
            });
        }
        best.truncate(top_k);
        best.sort_unstable();
        let length = sequences.lengths[row] as usize;
        let used = length.div_ceil(block_size);
        let chosen = best.iter().map(|&index| table[candidates.start + index as usize]);
        let kept =
            table[..candidates.start].iter().copied().chain(chosen).chain(table[candidates.end..used].iter().copied());
        let num_left_out = candidates.len() - top_k;
        // SAFETY: as the caller promises; a row has room for all of its blocks.
        unsafe {
            for (index, block) in kept.enumerate() {
                self.table(row).add(index).write(block);
            }
            self.write_row(row, (length - num_left_out * block_size) as i32);
        }
    }

    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn write_row(&self, row: usize, length: i32) {
        let at = |address| with_exposed_provenance_mut::<i32>(address).wrapping_add(row);
        // SAFETY: as the caller promises.
        unsafe {
            at(self.out.slots).write(row as i32);
            at(self.out.sequence_lengths).write(length);
        }
    }

    fn table(&self, row: usize) -> *mut i32 {
        with_exposed_provenance_mut::<i32>(self.out.block_tables).wrapping_add(row * self.rows.batch.max_blocks)
    }
}

impl SelectingRow<'_> {
    fn blocks(&self) -> &[i32] {
        &self.table[self.candidates.clone()]
    }
}
