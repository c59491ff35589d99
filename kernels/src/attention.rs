//! Causal attention over the paged cache (arXiv 2309.06180), by the online softmax (arXiv 1805.02867).
//!
//! A head of a token goes through its keys in tiles of `TILE` and splits of `SPLIT`, both counted from position 0: within
//! a split tile by tile, then split is merged to split in order. That alone decides a result's bits. Which tokens and
//! heads share a tile that was loaded, and which thread does which splits, decides when something is computed only.

mod plan;
mod tile;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use crate::cache::Cache;
use crate::isa::Isa;
use crate::linear::Element;
use crate::op::{Extent, Indices, Op, OutOfRange, Rows, check_range};
use crate::threads::Pool;
use crate::vector::{self, Bfloat16, Storage};
use plan::{Plan, Work};
use tile::{Ahead, Finish, LoadKeys, LoadQueries, LoadValues, Merge, State, TILE, Tile, padded};

/// Positions after which what was summed up is set aside, so that others can compute the rest meanwhile.
const SPLIT: usize = 512;

/// One layer's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedAttention {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    /// A row is a token: its heads, one after the other. Both are made of one element.
    pub(crate) query: Rows,
    pub(crate) out: Rows,
    pub(crate) cache: Cache,
    pub(crate) batch: Batch,
}

/// Where each sequence's queries and keys are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) rows: usize,
    pub(crate) block_tables: Indices,
    pub(crate) num_slots: usize,
    pub(crate) max_blocks: usize,
    pub(crate) slots: Indices,
    pub(crate) query_starts: Indices,
    pub(crate) sequence_lengths: Indices,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Op for PagedAttention {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: self.batch.rows }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let sequences = unsafe { Sequences::of(&self.batch, extent.rows) };
        sequences.check(extent.tokens, &self.cache, self.batch.num_slots)?;
        let num_threads = pool.num_threads();
        PLAN.with_borrow_mut(|plan| {
            plan.make(&sequences, self.cache.kv_heads, num_threads);
            let floats_a_split = plan.max_pairs(self.group()) * self.state_floats();
            plan.partials.resize(plan.num_partials * floats_a_split, 0.0);
            let partials = Shared(plan.partials.as_mut_ptr());
            pool.run(plan.works.len(), &|index| {
                let work = &plan.works[index];
                // What this thread does next, unless another takes it.
                let next = plan.works.get(index + 1);
                let attend = Attend { op: self, sequences: &sequences, isa, next };
                // SAFETY: as the caller promises; the indices were checked, and a work writes what is its own: its tokens
                // and heads, or its partials.
                unsafe {
                    match work.partial {
                        None => attend.whole(work),
                        Some(partial) => attend.split(work, partials.at(partial * floats_a_split)),
                    }
                }
            });
            pool.run(plan.merges.len(), &|index| {
                let merge = &plan.merges[index];
                let attend = Attend { op: self, sequences: &sequences, isa, next: None };
                // SAFETY: as above; the partials were written by the works before.
                unsafe { attend.merge(merge, partials.at(0), floats_a_split) };
            });
        });
        Ok(())
    }
}

impl PagedAttention {
    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.heads / self.cache.kv_heads
    }

    /// Floats of a pair's state: what it has summed up, its greatest score and its sum of weights.
    fn state_floats(&self) -> usize {
        padded(self.cache.head_dim) + 2
    }
}

/// The batch's indices as they are in this step.
struct Sequences<'a> {
    slots: &'a [i32],
    query_starts: &'a [i32],
    lengths: &'a [i32],
    block_tables: &'a [i32],
    max_blocks: usize,
}

impl Sequences<'_> {
    /// # Safety
    ///
    /// What the batch points to is there, and nothing writes to it meanwhile.
    unsafe fn of(batch: &Batch, rows: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                slots: batch.slots.first(rows),
                query_starts: batch.query_starts.first(rows + 1),
                lengths: batch.sequence_lengths.first(rows),
                block_tables: batch.block_tables.first(batch.num_slots * batch.max_blocks),
                max_blocks: batch.max_blocks,
            }
        }
    }

    fn check(&self, tokens: usize, cache: &Cache, num_slots: usize) -> Result<(), OutOfRange> {
        check_range("slot of row", self.slots, 0..num_slots as i64)?;
        check_range("query start", self.query_starts, 0..tokens as i64 + 1)?;
        let most = self.max_blocks * cache.block_size;
        for row in 0..self.slots.len() {
            let (start, end) = (i64::from(self.query_starts[row]), i64::from(self.query_starts[row + 1]));
            let out_of_range = |what, number, from, to| OutOfRange::Index { what, index: row, number, from, to };
            if end < start {
                return Err(out_of_range("end of the queries of row", end, start, tokens as i64));
            }
            let length = i64::from(self.lengths[row]);
            if !(end - start..=most as i64).contains(&length) {
                return Err(out_of_range("length of the sequence of row", length, end - start, most as i64));
            }
            let used = (length as usize).div_ceil(cache.block_size);
            check_range(
                "used entry of a row of the block tables",
                &self.table(row)[..used],
                0..cache.num_blocks as i64,
            )?;
        }
        Ok(())
    }

    fn table(&self, row: usize) -> &[i32] {
        &self.block_tables[self.slots[row] as usize * self.max_blocks..][..self.max_blocks]
    }

    /// Write the cells of so many positions.
    fn cells(&self, row: usize, first: usize, block_size: usize, cells: &mut [usize]) {
        let (mut block, mut offset) = (first / block_size, first % block_size);
        let table = self.table(row);
        for cell in cells {
            *cell = table[block] as usize * block_size + offset;
            offset += 1;
            if offset == block_size {
                (block, offset) = (block + 1, 0);
            }
        }
    }
}

/// One call of the op, for its threads.
struct Attend<'a> {
    op: &'a PagedAttention,
    sequences: &'a Sequences<'a>,
    isa: Isa,
    /// What this thread does afterwards, as far as can be told.
    next: Option<&'a Work>,
}

impl Attend<'_> {
    /// All splits of a work, one after the other.
    ///
    /// # Safety
    ///
    /// As for `Op::run`; the indices have been checked.
    unsafe fn whole(&self, work: &Work) {
        let pairs = work.pairs(self.op.group());
        let state_floats = pairs * self.op.state_floats();
        let memory = self.memory(work, 2 * state_floats);
        // SAFETY: there is so much memory, and the rest as the caller promises.
        unsafe {
            let total = self.state(memory.states, pairs);
            let partial = self.state(memory.states.add(state_floats), pairs);
            self.load_queries(work, memory.queries);
            self.sum_split(work, 0, &memory, total);
            for split in 1..work.end().div_ceil(SPLIT) {
                self.sum_split(work, split, &memory, partial);
                self.merge_split(work, split, total, partial);
            }
            self.finish(work, total);
        }
    }

    /// The one split that is a work, into a state that the caller has.
    ///
    /// # Safety
    ///
    /// As for `Op::run`; the indices have been checked, and the memory is that of a state.
    unsafe fn split(&self, work: &Work, state: *mut f32) {
        let memory = self.memory(work, 0);
        // SAFETY: there is so much memory, and the rest as the caller promises.
        unsafe {
            self.load_queries(work, memory.queries);
            self.sum_split(work, work.split, &memory, self.state(state, work.pairs(self.op.group())));
        }
    }

    /// Put the splits of a work together, which lie one after the other from the work's partial on.
    ///
    /// # Safety
    ///
    /// As for `Op::run`; every split was summed up.
    unsafe fn merge(&self, work: &Work, partials: *mut f32, floats_a_split: usize) {
        let pairs = work.pairs(self.op.group());
        let first = work.partial.unwrap_or_default();
        // SAFETY: as the caller promises.
        unsafe {
            let total = self.state(partials.add(first * floats_a_split), pairs);
            for split in 1..work.end().div_ceil(SPLIT) {
                let partial = self.state(partials.add((first + split) * floats_a_split), pairs);
                self.merge_split(work, split, total, partial);
            }
            self.finish(work, total);
        }
    }

    /// # Safety
    ///
    /// As for `Kernel::run`.
    unsafe fn load_queries(&self, work: &Work, queries: *mut f32) {
        let PagedAttention { query, scale, cache, .. } = self.op;
        let group = self.op.group();
        for pair in 0..work.pairs(group) {
            let (token, head) = work.token_and_head(pair, group);
            // SAFETY: as the caller promises.
            unsafe {
                let (head_dim, to) = (cache.head_dim, queries.add(pair * padded(cache.head_dim)));
                match query.element {
                    Element::Float32 => {
                        let from = query.row::<f32>(token).add(head * head_dim);
                        vector::run(self.isa, &LoadQueries { from, to, head_dim, scale: *scale }, 0);
                    }
                    Element::Bfloat16 => {
                        let from = query.row::<Bfloat16>(token).add(head * head_dim);
                        vector::run(self.isa, &LoadQueries { from, to, head_dim, scale: *scale }, 0);
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for `Kernel::run`.
    unsafe fn sum_split(&self, work: &Work, split: usize, memory: &Memory, state: State) {
        let group = self.op.group();
        let end = work.end().min((split + 1) * SPLIT);
        // SAFETY: as the caller promises.
        unsafe { state.clear(work.pairs(group)) };
        let (mut cells, mut coming) = (Cells::default(), Cells::default());
        self.find_cells(work, split * SPLIT..end, &mut coming);
        for first in (split * SPLIT..end).step_by(TILE) {
            std::mem::swap(&mut cells, &mut coming);
            match self.next {
                _ if first + TILE < end => self.find_cells(work, first + TILE..end, &mut coming),
                Some(next) => self.find_cells(next, next.split * SPLIT..next.end(), &mut coming),
                None => coming.count = 0,
            }
            // The tokens from here on see something of the tile.
            let unseeing = first.saturating_sub(work.position).min(work.num_tokens);
            for kv_head in 0..work.num_kv_heads {
                let first_pair = kv_head * work.num_tokens * group;
                let tile = Tile {
                    head_dim: self.op.cache.head_dim,
                    queries: memory.queries,
                    keys: memory.keys,
                    values: memory.values,
                    scores: memory.scores,
                    state,
                    first_pair,
                    pairs: first_pair + unseeing * group..first_pair + work.num_tokens * group,
                    group,
                    position: work.position,
                    first,
                };
                // SAFETY: as the caller promises.
                unsafe {
                    let ahead = self.ahead(&coming, kv_head, work.num_kv_heads);
                    self.load_tile(cells.get(), work.first_kv_head + kv_head, ahead, memory);
                    vector::run(self.isa, &tile, 0);
                }
            }
        }
    }

    /// The cells of the first tile of a range of a work's positions.
    fn find_cells(&self, work: &Work, positions: Range<usize>, cells: &mut Cells) {
        cells.count = TILE.min(positions.len());
        cells.heads = work.first_kv_head..work.first_kv_head + work.num_kv_heads;
        self.sequences.cells(work.row, positions.start, self.op.cache.block_size, &mut cells.places[..cells.count]);
    }

    /// One of so many parts of what is coming: keys and values.
    fn ahead<'a>(&self, coming: &'a Cells, part: usize, parts: usize) -> [Ahead<'a>; 2] {
        let (cache, count) = (&self.op.cache, coming.count);
        let cells = &coming.get()[count * part / parts..count * (part + 1) / parts];
        let head_bytes = cache.head_dim * cache.element.bytes();
        [cache.key_address, cache.value_address].map(|address| Ahead {
            cells,
            address: address + coming.heads.start * head_bytes,
            cell_bytes: cache.kv_heads * head_bytes,
            bytes: coming.heads.len() * head_bytes,
        })
    }

    /// # Safety
    ///
    /// As for `Kernel::run`.
    unsafe fn load_tile(&self, cells: &[usize], kv_head: usize, ahead: [Ahead<'_>; 2], memory: &Memory) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.op.cache.element {
                Element::Float32 => self.load_tile_of::<f32>(cells, kv_head, ahead, memory),
                Element::Bfloat16 => self.load_tile_of::<Bfloat16>(cells, kv_head, ahead, memory),
            }
        }
    }

    /// # Safety
    ///
    /// As for `Kernel::run`; the cache is made of C.
    unsafe fn load_tile_of<C: Storage>(&self, cells: &[usize], kv_head: usize, ahead: [Ahead<'_>; 2], memory: &Memory) {
        let (cache, offset) = (&self.op.cache, kv_head * self.op.cache.head_dim);
        // SAFETY: as the caller promises.
        unsafe {
            let from = cache.keys::<C>(0).add(offset);
            vector::run(self.isa, &LoadKeys { cache, cells, ahead: ahead[0], from, to: memory.keys }, 0);
            let from = cache.values::<C>(0).add(offset);
            vector::run(self.isa, &LoadValues { cache, cells, ahead: ahead[1], from, to: memory.values }, 0);
        }
    }

    /// Add a split to those before it, for the tokens that see something of it.
    ///
    /// # Safety
    ///
    /// As for `Kernel::run`.
    unsafe fn merge_split(&self, work: &Work, split: usize, total: State, partial: State) {
        let group = self.op.group();
        let unseeing = (split * SPLIT).saturating_sub(work.position).min(work.num_tokens);
        for kv_head in 0..work.num_kv_heads {
            let first_pair = kv_head * work.num_tokens * group;
            let pairs = first_pair + unseeing * group..first_pair + work.num_tokens * group;
            // SAFETY: as the caller promises.
            unsafe {
                vector::run(self.isa, &Merge { total, partial, pairs, head_dim: self.op.cache.head_dim }, 0);
            }
        }
    }

    /// # Safety
    ///
    /// As for `Kernel::run`.
    unsafe fn finish(&self, work: &Work, state: State) {
        let PagedAttention { out, cache: Cache { head_dim, .. }, .. } = *self.op;
        let group = self.op.group();
        for pair in 0..work.pairs(group) {
            let (token, head) = work.token_and_head(pair, group);
            // SAFETY: as the caller promises.
            unsafe {
                match out.element {
                    Element::Float32 => {
                        let to = out.row::<f32>(token).add(head * head_dim);
                        vector::run(self.isa, &Finish { state, to, head_dim }, pair);
                    }
                    Element::Bfloat16 => {
                        let to = out.row::<Bfloat16>(token).add(head * head_dim);
                        vector::run(self.isa, &Finish { state, to, head_dim }, pair);
                    }
                }
            }
        }
    }

    /// This thread's own memory, for a work and so many floats of states.
    fn memory(&self, work: &Work, state_floats: usize) -> Memory {
        let width = padded(self.op.cache.head_dim);
        let lengths = [
            TILE * width,                        // keys
            TILE * width,                        // values
            TILE * tile::MAX_ROWS,               // scores
            work.pairs(self.op.group()) * width, // queries
            state_floats,                        // states
        ];
        let start = SCRATCH.with_borrow_mut(|scratch| {
            let wanted = lengths.iter().sum::<usize>() + ALIGNMENT;
            if scratch.len() < wanted {
                scratch.resize(wanted, 0.0);
            }
            // The memory stays: it grows in this function only, and nobody calls this while a work is under way.
            let misaligned = scratch.as_ptr().align_offset(ALIGNMENT * 4);
            scratch[misaligned..].as_mut_ptr()
        });
        let mut at = 0;
        let [keys, values, scores, queries, states] = lengths.map(|length| {
            let here = start.wrapping_add(at);
            at += length;
            here
        });
        Memory { keys, values, scores, queries, states }
    }

    /// # Safety
    ///
    /// There is memory for the states of so many pairs.
    unsafe fn state(&self, memory: *mut f32, pairs: usize) -> State {
        let width = padded(self.op.cache.head_dim);
        // SAFETY: as the caller promises.
        unsafe {
            State { sums: memory, greatest: memory.add(pairs * width), weights: memory.add(pairs * (width + 1)), width }
        }
    }
}

/// Where the positions of a tile are in the cache.
struct Cells {
    places: [usize; TILE],
    count: usize,
    /// The KV heads that are wanted of them.
    heads: Range<usize>,
}

impl Default for Cells {
    fn default() -> Self {
        Self { places: [0; TILE], count: 0, heads: 0..0 }
    }
}

impl Cells {
    fn get(&self) -> &[usize] {
        &self.places[..self.count]
    }
}

/// Floats of a cache line.
const ALIGNMENT: usize = 16;

/// A thread's memory, parted.
struct Memory {
    keys: *mut f32,
    values: *mut f32,
    scores: *mut f32,
    queries: *mut f32,
    states: *mut f32,
}

/// A pointer that threads write through, each to what is its own.
struct Shared(*mut f32);

// SAFETY: a work writes to its own partial.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}
