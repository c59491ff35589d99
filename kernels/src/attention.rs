//! Attention over the paged cache (arXiv 2309.06180), by the online softmax (arXiv 1805.02867): causal, or of encoders,
//! whose tokens see later ones, too.
//!
//! A head of a token goes through its keys in tiles of `TILE` and splits of `SPLIT`, both counted from position 0:
//! within a split tile by tile, then the splits are merged in order, and a sink comes last. Only this order decides a
//! result's bits. The tokens and heads that share a loaded tile, and the threads that compute the splits, affect only
//! the time of a computation.

#[cfg(target_arch = "x86_64")]
mod amx;
mod block_selection;
mod cells;
mod floats;
mod plan;
mod tile_backend;
mod token_selection;
#[cfg(test)]
mod tests;

use std::ptr::with_exposed_provenance;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) use block_selection::{score_blocks, select_blocks};
pub(crate) use token_selection::select_tokens;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::kv_layer::{KvLayer, check_value_dim};
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_query_starts, check_range};
use crate::threads::Pool;
use crate::vector::LANES;
use tile_backend::Call;

/// Positions in a tile of keys and values.
const TILE: usize = 64;
/// Positions in a split, which is summed up apart, so that other threads can compute the rest.
const SPLIT: usize = 512;

/// The window of a layer without one.
pub(crate) const NO_WINDOW: usize = usize::MAX;

/// One layer's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedAttention {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    /// Positions that a token attends to, its own included; `NO_WINDOW`: all before it.
    pub(crate) window: usize,
    /// Whether a token attends to as many positions after it, too, up to the end of its sequence.
    pub(crate) bidirectional: bool,
    /// Bound of the scores: `cap * tanh(score / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// Address of each head's sink, a logit that takes a share of its softmax, float32 [heads].
    pub(crate) sinks: Option<usize>,
    /// Address of each head's slope, by which a score falls for each position of distance, float32 [heads].
    pub(crate) slopes: Option<usize>,
    /// The bias of scores by distance.
    pub(crate) relative_bias: Option<RelativeBias>,
    /// A row is a token: its heads, one after the other. Query and out have the same dtype.
    pub(crate) query: Matrix,
    pub(crate) out: Matrix,
    /// Numbers of a head of out: the first of a cached value.
    pub(crate) value_dim: usize,
    pub(crate) cache: KvLayer,
    pub(crate) batch: Batch,
}

/// For each head a number for each distance of a key from a query, float32 [heads, `width`].
///
/// The number of the distance 0 is in the middle of all but the last `LANES`, which are read and not used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelativeBias {
    pub(crate) address: usize,
    pub(crate) width: usize,
}

impl RelativeBias {
    /// The greatest length of a sequence.
    fn reach(self) -> usize {
        (self.width - LANES) / 2
    }

    /// The numbers of a head for the positions from `first` on, of a query at `own`.
    fn from(self, head: usize, own: usize, first: usize) -> *const f32 {
        with_exposed_provenance::<f32>(self.address).wrapping_add(head * self.width + self.reach() + first - own)
    }
}

/// Addresses of each sequence's queries and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) rows: usize,
    pub(crate) block_tables: Indices,
    pub(crate) num_slots: usize,
    pub(crate) max_blocks: usize,
    pub(crate) slots: Indices,
    pub(crate) query_starts: Indices,
    pub(crate) sequence_lengths: Indices,
    /// Whether each token is a row.
    pub(crate) is_by_token: bool,
}

/// An `AttentionMetadata` of Python.
#[derive(FromPyObject)]
pub(crate) struct BatchArrays {
    block_tables: Array,
    slots: Array,
    query_starts: Array,
    sequence_lengths: Array,
    num_tokens: usize,
    is_by_token: bool,
}

impl BatchArrays {
    /// The batch of an op on sequences.
    fn read(&self) -> PyResult<Batch> {
        if self.is_by_token {
            return Err(PyValueError::new_err("each token is a row: only attention takes such a batch"));
        }
        self.read_any()
    }

    fn read_any(&self) -> PyResult<Batch> {
        let tables @ [num_slots, max_blocks] = self.block_tables.dimensions("block_tables")?;
        let [rows] = self.slots.dimensions("slots")?;
        Ok(Batch {
            rows,
            block_tables: self.block_tables.indices("block_tables", &tables)?,
            num_slots,
            max_blocks,
            slots: self.slots.indices("slots", &[rows])?,
            query_starts: self.query_starts.indices("query_starts", &[rows + 1])?,
            sequence_lengths: self.sequence_lengths.indices("sequence_lengths", &[rows])?,
            is_by_token: self.is_by_token,
        })
    }

    fn arrays(&self) -> [&Array; 4] {
        [&self.block_tables, &self.slots, &self.query_starts, &self.sequence_lengths]
    }
}

/// An `AttentionLayer` of Python.
#[derive(FromPyObject)]
pub(crate) struct LayerArguments {
    scale: f32,
    window: Option<usize>,
    bidirectional: bool,
    soft_cap: Option<f32>,
    sinks: Option<Array>,
    slopes: Option<Array>,
    relative_bias: Option<Array>,
}

#[pyfunction]
pub(crate) fn paged_attention(
    py: Python<'_>,
    query: Array,
    key_cache: Array,
    value_cache: Array,
    metadata: BatchArrays,
    layer: LayerArguments,
    out: Array,
) -> PyResult<()> {
    let shape @ [tokens, heads, head_dim] = query.dimensions("query")?;
    let cache = KvLayer::of(&key_cache, &value_cache, head_dim)?;
    let window = layer.window.unwrap_or(NO_WINDOW);
    if window == 0 {
        return Err(PyValueError::new_err("a window of 0 positions: a token sees at least itself"));
    }
    check_heads(heads, cache.kv_heads)?;
    let dtype = query.dtype("query")?;
    let of_heads = |numbers: &Option<Array>, name| {
        numbers.as_ref().map(|numbers| numbers.elements(name, "float32", &[heads])).transpose()
    };
    let [.., value_dim] = out.dimensions::<3>("out")?;
    check_value_dim(value_dim, head_dim)?;
    let batch = metadata.read_any()?;
    if batch.is_by_token && batch.rows != tokens {
        return Err(PyValueError::new_err(format!(
            "each token is a row, and {} rows are given for {tokens} tokens",
            batch.rows
        )));
    }
    let op = PagedAttention {
        tokens,
        heads,
        scale: layer.scale,
        window,
        bidirectional: layer.bidirectional,
        soft_cap: layer.soft_cap,
        sinks: of_heads(&layer.sinks, "sinks")?,
        slopes: of_heads(&layer.slopes, "slopes")?,
        relative_bias: layer.relative_bias.as_ref().map(|bias| relative_bias_of(bias, heads)).transpose()?,
        query: query.heads("query", dtype, shape)?,
        out: out.heads("out", dtype, [tokens, heads, value_dim])?,
        value_dim,
        cache,
        batch,
    };
    let mut arrays = vec![&query, &key_cache, &value_cache, &out];
    arrays.extend(metadata.arrays());
    arrays.extend(layer.sinks.iter().chain(&layer.slopes).chain(&layer.relative_bias));
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

fn relative_bias_of(bias: &Array, heads: usize) -> PyResult<RelativeBias> {
    let [_, width] = bias.dimensions("relative_bias")?;
    if width <= LANES {
        return Err(PyValueError::new_err(format!(
            "a relative bias of {width} numbers a head: the last {LANES} are not used"
        )));
    }
    Ok(RelativeBias { address: bias.elements("relative_bias", "float32", &[heads, width])?, width })
}

/// Check that each KV head serves equally many query heads.
fn check_heads(heads: usize, kv_heads: usize) -> PyResult<()> {
    if heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(PyValueError::new_err(format!(
            "{heads} query heads over {kv_heads} KV heads: each of those must serve as many of these"
        )));
    }
    Ok(())
}

impl Op for PagedAttention {
    fn name(&self) -> &'static str {
        "paged_attention"
    }

    fn capacity(&self) -> Extent {
        let rows = if self.batch.is_by_token { usize::MAX } else { self.batch.rows };
        Extent { tokens: self.tokens, rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        let rows = if self.batch.is_by_token { extent.tokens } else { extent.rows };
        // SAFETY: as the caller promises.
        let sequences = unsafe { self.batch.sequences(rows) };
        sequences.check(extent.tokens, &self.cache, self.batch.num_slots, self.window)?;
        if let Some(bias) = self.relative_bias {
            check_range("length of the sequence of row", sequences.lengths, 0..bias.reach() as i64 + 1)?;
        }
        let call = Call { op: self, sequences: &sequences, isa };
        // SAFETY: as the caller promises; the indices were checked, and what tiles are made for is what they take.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx if amx::takes(self) => tile_backend::attend::<amx::Amx>(&call, pool),
                _ => tile_backend::attend::<floats::Floats>(&call, pool),
            }
        }
        Ok(())
    }
}

impl PagedAttention {
    /// The end of the positions that a token sees, in a sequence of so many tokens.
    fn end(&self, position: usize, length: usize) -> usize {
        if self.bidirectional { position.saturating_add(self.window).min(length) } else { position + 1 }
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.heads / self.cache.kv_heads
    }

    /// The sink of a head, if there are any.
    ///
    /// # Safety
    ///
    /// See `Op::run`.
    unsafe fn sink(&self, head: usize) -> Option<f32> {
        // SAFETY: as the caller promises.
        self.sinks.map(|sinks| unsafe { with_exposed_provenance::<f32>(sinks).add(head).read_unaligned() })
    }

    /// The relative bias of a KV head's query heads, if there is any.
    fn relative_bias(&self, kv_head: usize) -> Option<RelativeBias> {
        let before = kv_head * self.group();
        self.relative_bias
            .map(|bias| RelativeBias { address: bias.address + before * bias.width * size_of::<f32>(), ..bias })
    }

    /// The slopes of a KV head's query heads, if there are any.
    fn slopes(&self, kv_head: usize) -> Option<*const f32> {
        self.slopes.map(|slopes| with_exposed_provenance::<f32>(slopes).wrapping_add(kv_head * self.group()))
    }
}

/// The batch's indices in this step.
struct Sequences<'a> {
    slots: &'a [i32],
    query_starts: &'a [i32],
    lengths: &'a [i32],
    block_tables: &'a [i32],
    max_blocks: usize,
}

impl Batch {
    /// The first rows.
    ///
    /// # Safety
    ///
    /// The batch's pointers are valid, and nothing writes to their memory meanwhile.
    unsafe fn sequences<'a>(&self, rows: usize) -> Sequences<'a> {
        // SAFETY: as the caller promises.
        unsafe {
            Sequences {
                slots: self.slots.first(rows),
                query_starts: self.query_starts.first(rows + 1),
                lengths: self.sequence_lengths.first(rows),
                block_tables: self.block_tables.first(self.num_slots * self.max_blocks),
                max_blocks: self.max_blocks,
            }
        }
    }
}

impl Sequences<'_> {
    /// Check all indices. With a window, positions before it need no block.
    fn check(&self, tokens: usize, cache: &KvLayer, num_slots: usize, window: usize) -> Result<(), OutOfRange> {
        check_range("slot of row", self.slots, 0..num_slots as i64)?;
        check_query_starts(self.query_starts, tokens)?;
        let most = self.max_blocks * cache.block_size;
        for row in 0..self.slots.len() {
            let (start, end) = (i64::from(self.query_starts[row]), i64::from(self.query_starts[row + 1]));
            let length = i64::from(self.lengths[row]);
            if !(end - start..=most as i64).contains(&length) {
                let (what, from) = ("length of the sequence of row", end - start);
                return Err(OutOfRange::Index { what, index: row, number: length, from, to: most as i64 });
            }
            let (first, used) = (length - (end - start), (length as usize).div_ceil(cache.block_size));
            let passed = (first as usize + 1).saturating_sub(window) / cache.block_size;
            check_range(
                "used entry of a row of the block tables",
                &self.table(row)[passed.min(used)..used],
                0..cache.num_blocks as i64,
            )?;
        }
        Ok(())
    }

    fn table(&self, row: usize) -> &[i32] {
        &self.block_tables[self.slots[row] as usize * self.max_blocks..][..self.max_blocks]
    }

    /// Write the cells of consecutive positions.
    fn cells(&self, row: usize, first: usize, cache: &KvLayer, cells: &mut [usize]) {
        let block_size = cache.block_size;
        let (mut block, mut offset) = (first / block_size, first % block_size);
        let table = self.table(row);
        for cell in cells {
            *cell = table[block] as usize * cache.block_stride + offset;
            offset += 1;
            if offset == block_size {
                (block, offset) = (block + 1, 0);
            }
        }
    }
}
