//! The vector kernels: all numbers in float32, from any element type. A tile of keys and values is first converted.

mod product;
mod tile;

use std::ops::Range;

use super::cells::Ahead;
use super::plan::Work;
use super::tile_backend::{Call, Step, TileBackend};
use super::{PagedAttention, SPLIT, TILE};
use crate::vector::{self, Storage, for_dtype};
use tile::{Finish, LoadKeys, LoadQueries, LoadValues, MAX_ROWS, Merge, State, Tile, padded};

/// The computation of one work.
pub(super) struct Floats<'a> {
    call: Call<'a>,
    work: Work,
    memory: Memory,
}

/// A work's memory, except its states.
struct Memory {
    keys: *mut f32,
    values: *mut f32,
    scores: *mut f32,
    queries: *mut f32,
}

impl<'a> TileBackend<'a> for Floats<'a> {
    /// Floats of a pair's sums, greatest score and sum of weights, for all pairs.
    fn state_floats(op: &PagedAttention, work: &Work) -> usize {
        work.pairs(op.group()) * (padded(op.cache.head_dim) + 2)
    }

    fn scratch_floats(op: &PagedAttention, work: &Work) -> usize {
        lengths(op, work).iter().sum()
    }

    unsafe fn new(call: Call<'a>, work: Work, scratch: *mut f32) -> Self {
        let mut at = 0;
        let [keys, values, scores, queries] = lengths(call.op, &work).map(|length| {
            let here = scratch.wrapping_add(at);
            at += length;
            here
        });
        Self { call, work, memory: Memory { keys, values, scores, queries } }
    }

    /// Copy the queries.
    unsafe fn start(&mut self) {
        let PagedAttention { query, scale, cache, .. } = &self.call.op;
        let group = self.call.op.group();
        for pair in 0..self.work.pairs(group) {
            let (token, head) = self.work.token_and_head(pair, group);
            // SAFETY: as the caller promises.
            unsafe {
                let (head_dim, to) = (cache.head_dim, self.memory.queries.add(pair * padded(cache.head_dim)));
                for_dtype!(query.dtype, Q => {
                    let from = query.row::<Q>(token).add(head * head_dim);
                    vector::run(self.call.isa, &LoadQueries { from, to, head_dim, scale: *scale }, 0);
                });
            }
        }
    }

    unsafe fn clear(&self, state: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { self.state(state).clear(self.work.pairs(self.call.op.group())) };
    }

    unsafe fn take(&self, step: &Step<'_>, state: *mut f32) {
        let (work, memory, group) = (&self.work, &self.memory, self.call.op.group());
        let seeing = self.seeing(step.first, step.first + step.cells.count);
        for kv_head in 0..work.num_kv_heads {
            let first_pair = kv_head * work.num_tokens * group;
            let tile = Tile {
                head_dim: self.call.op.cache.head_dim,
                queries: memory.queries,
                keys: memory.keys,
                values: memory.values,
                scores: memory.scores,
                state: self.state(state),
                first_pair,
                pairs: first_pair + seeing.start * group..first_pair + seeing.end * group,
                group,
                position: work.position,
                first: step.first,
                window: self.call.op.window,
                ahead: self.ahead(),
                end: work.end,
                soft_cap: self.call.op.soft_cap,
                slopes: self.call.op.slopes(work.first_kv_head + kv_head),
                relative_bias: self.call.op.relative_bias(work.first_kv_head + kv_head),
            };
            let ahead = step.coming.ahead(&self.call.op.cache, kv_head, work.num_kv_heads);
            // SAFETY: as the caller promises.
            unsafe {
                self.load_tile(step.cells.get(), work.first_kv_head + kv_head, &ahead);
                vector::run(self.call.isa, &tile, 0);
            }
        }
    }

    /// Merge for the tokens that see a part of the split; it is the first for those whose window begins in it.
    unsafe fn merge(&self, total: *mut f32, partial: *mut f32, split: usize) {
        let (work, group) = (&self.work, self.call.op.group());
        let (total, partial) = (self.state(total), self.state(partial));
        let seeing = self.seeing(split * SPLIT, (split + 1) * SPLIT);
        // The first token whose window begins in this split.
        let begin = (split * SPLIT).saturating_add(self.call.op.window - 1).saturating_sub(work.position);
        let begin = begin.clamp(seeing.start, seeing.end);
        for kv_head in 0..work.num_kv_heads {
            let pair = |token: usize| (kv_head * work.num_tokens + token) * group;
            let pairs = pair(seeing.start)..pair(begin);
            let merge = Merge { total, partial, pairs, head_dim: self.call.op.cache.head_dim };
            // SAFETY: as the caller promises.
            unsafe {
                vector::run(self.call.isa, &merge, 0);
                total.copy(&partial, pair(begin)..pair(seeing.end));
            }
        }
    }

    unsafe fn finish(&self, total: *mut f32) {
        let PagedAttention { out, value_dim, .. } = *self.call.op;
        let state = self.state(total);
        let group = self.call.op.group();
        for pair in 0..self.work.pairs(group) {
            let (token, head) = self.work.token_and_head(pair, group);
            // SAFETY: as the caller promises.
            unsafe {
                let sink = self.call.op.sink(head);
                for_dtype!(out.dtype, Q => {
                    let to = out.row::<Q>(token).add(head * value_dim);
                    vector::run(self.call.isa, &Finish { state, sink, to, value_dim }, pair);
                });
            }
        }
    }
}

impl Floats<'_> {
    /// Positions after its own that a token sees, before the end of the work's.
    fn ahead(&self) -> usize {
        let Work { position, end, .. } = self.work;
        if self.call.op.bidirectional { (self.call.op.window - 1).min(end - position) } else { 0 }
    }

    /// The tokens that see at least one of some positions.
    fn seeing(&self, first: usize, end: usize) -> Range<usize> {
        let Work { position, num_tokens, .. } = self.work;
        let start = first.saturating_sub(position + self.ahead()).min(num_tokens);
        let end = end.saturating_add(self.call.op.window - 1).saturating_sub(position).min(num_tokens);
        start..end.max(start)
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    unsafe fn load_tile(&self, cells: &[usize], kv_head: usize, ahead: &Ahead<'_>) {
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(self.call.op.cache.dtype, C => self.load_tile_of::<C>(cells, kv_head, ahead)) }
    }

    /// # Safety
    ///
    /// See `Kernel::run`; the cache is made of C.
    unsafe fn load_tile_of<C: Storage>(&self, cells: &[usize], kv_head: usize, ahead: &Ahead<'_>) {
        let (cache, offset) = (&self.call.op.cache, kv_head * self.call.op.cache.head_dim);
        // SAFETY: as the caller promises.
        unsafe {
            let from = cache.keys::<C>(0).add(offset);
            vector::run(
                self.call.isa,
                &LoadKeys { cache, cells, ahead: ahead.share(0..1, 2), from, to: self.memory.keys },
                0,
            );
            let from = cache.values::<C>(0).add(offset);
            vector::run(
                self.call.isa,
                &LoadValues { cache, cells, ahead: ahead.share(1..2, 2), from, to: self.memory.values },
                0,
            );
        }
    }

    /// The parts of a state.
    fn state(&self, memory: *mut f32) -> State {
        let (pairs, width) = (self.work.pairs(self.call.op.group()), padded(self.call.op.cache.head_dim));
        let greatest = memory.wrapping_add(pairs * width);
        State { sums: memory, greatest, weights: greatest.wrapping_add(pairs), width }
    }
}

/// Floats of keys, values, scores and queries.
fn lengths(op: &PagedAttention, work: &Work) -> [usize; 4] {
    let width = padded(op.cache.head_dim);
    [TILE * width, TILE * width, TILE * MAX_ROWS, work.pairs(op.group()) * width]
}
