//! Scores of a row's blocks by their summaries, and their estimated shares of the attention.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::cell::RefCell;
use std::marker::PhantomData;

use super::ScoreBlocks;
use super::key_summaries::SummaryKind;
use crate::memory::scratch::Scratch;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Query heads that are multiplied with a summary once it is loaded.
const HEADS_AT_ONCE: usize = 4;

thread_local! {
    static QUERIES: RefCell<Scratch> = RefCell::default();
}

/// The scores of some blocks for every head of a token: with a mean `query @ mean`, with bounds the maximum of `query @
/// key` for keys within them.
pub(super) struct Scores<'a, C> {
    op: &'a ScoreBlocks,
    blocks: &'a [i32],
    token: usize,
    /// The scores of a head are `stride` behind those of the one before, and padded with minus infinity to a multiple
    /// of 16.
    to: *mut f32,
    stride: usize,
    element: PhantomData<C>,
}

// SAFETY: one thread has the part of the memory that is written.
unsafe impl<C> Sync for Scores<'_, C> {}

impl<'a, C> Scores<'a, C> {
    pub(super) fn new(op: &'a ScoreBlocks, blocks: &'a [i32], token: usize, to: *mut f32, stride: usize) -> Self {
        Self { op, blocks, token, to, stride, element: PhantomData }
    }
}

impl<C: Storage> Kernel for Scores<'_, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let (op, group) = (self.op, self.op.group());
        let width = op.rows.cache.head_dim.next_multiple_of(LANES);
        let floats = HEADS_AT_ONCE * op.summaries.kind.parts() * width;
        // Calls with a vector stay out of the closure, which is compiled without V's instructions.
        let queries: *mut f32 =
            QUERIES.with_borrow_mut(|queries| queries.bytes(floats * size_of::<f32>()).as_mut_ptr().cast());
        for kv_head in 0..op.rows.cache.kv_heads {
            for first in (0..group).step_by(HEADS_AT_ONCE) {
                let (head, count) = (kv_head * group + first, HEADS_AT_ONCE.min(group - first));
                // SAFETY: as the caller promises; there is so much memory.
                unsafe {
                    self.load_queries::<V>(head, count, queries, width);
                    match count {
                        1 => self.score::<V, 1>(kv_head, head, queries, width),
                        2 => self.score::<V, 2>(kv_head, head, queries, width),
                        3 => self.score::<V, 3>(kv_head, head, queries, width),
                        _ => self.score::<V, HEADS_AT_ONCE>(kv_head, head, queries, width),
                    }
                }
            }
        }
    }
}

impl<C: Storage> Scores<'_, C> {
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load_queries<V: Vector>(&self, head: usize, count: usize, to: *mut f32, width: usize) {
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(self.op.query.dtype, Q => self.load_queries_of::<Q, V>(head, count, to, width)) }
    }

    /// Load scaled queries for a summary: with bounds, positive elements for the maxima, negative ones for the minima.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn load_queries_of<Q: Storage, V: Vector>(&self, head: usize, count: usize, to: *mut f32, width: usize) {
        let (head_dim, parts) = (self.op.rows.cache.head_dim, self.op.summaries.kind.parts());
        for index in 0..count {
            let from = self.op.query.row::<Q>(self.token).wrapping_add((head + index) * head_dim);
            let to = to.wrapping_add(index * parts * width);
            for dimension in (0..head_dim).step_by(LANES) {
                // SAFETY: as the caller promises.
                unsafe {
                    let numbers = Q::load_up_to::<V>(from.add(dimension), head_dim - dimension);
                    let numbers = numbers.mul(V::splat(self.op.scale));
                    match self.op.summaries.kind {
                        SummaryKind::Mean => numbers.store(to.add(dimension)),
                        SummaryKind::Bounds => {
                            let zero = V::splat(0.0);
                            numbers.max(zero).store(to.add(dimension));
                            numbers.min(zero).store(to.add(width + dimension));
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn score<V: Vector, const HEADS: usize>(
        &self,
        kv_head: usize,
        head: usize,
        queries: *const f32,
        width: usize,
    ) {
        let (cache, summaries) = (&self.op.rows.cache, &self.op.summaries);
        let (head_dim, parts) = (cache.head_dim, summaries.kind.parts());
        // SAFETY: as the caller promises.
        unsafe {
            for (index, &block) in self.blocks.iter().enumerate() {
                let summary = summaries.of::<C>(block as usize, kv_head, cache);
                let mut sums = [V::splat(0.0); HEADS];
                for part in 0..parts {
                    for dimension in (0..head_dim).step_by(LANES) {
                        let left = head_dim - dimension;
                        let numbers = C::load_up_to::<V>(summary.add(part * head_dim + dimension), left);
                        for (index, sum) in sums.iter_mut().enumerate() {
                            let query = V::load(queries.add((index * parts + part) * width + dimension));
                            *sum = numbers.mul_add(query, *sum);
                        }
                    }
                }
                for (number, sum) in sums.into_iter().enumerate() {
                    *self.to.add((head + number) * self.stride + index) = sum.sum();
                }
            }
            for number in 0..HEADS {
                for index in self.blocks.len()..self.blocks.len().next_multiple_of(LANES) {
                    *self.to.add((head + number) * self.stride + index) = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// The share of the attention of each block, if all of its keys had its score: the softmax of a head's scores, summed
/// over the heads, written behind the scores of the last head.
pub(super) struct Shares {
    pub(super) scores: *mut f32,
    pub(super) heads: usize,
    pub(super) count: usize,
    pub(super) stride: usize,
}

// SAFETY: as for `Scores`.
unsafe impl Sync for Shares {}

impl Kernel for Shares {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let (end, shares) = (self.count.next_multiple_of(LANES), self.scores.wrapping_add(self.heads * self.stride));
        // SAFETY: as the caller promises; scores are padded to whole vectors.
        unsafe {
            for at in (0..end).step_by(LANES) {
                V::splat(0.0).store(shares.add(at));
            }
            for head in 0..self.heads {
                let scores = self.scores.add(head * self.stride);
                let mut greatest = V::load(scores);
                for at in (LANES..end).step_by(LANES) {
                    greatest = greatest.max(V::load(scores.add(at)));
                }
                let greatest = V::splat(greatest.greatest());
                let mut sum = V::splat(0.0);
                for at in (0..end).step_by(LANES) {
                    let weight = V::load(scores.add(at)).sub(greatest).exp();
                    sum = sum.add(weight);
                    weight.store(scores.add(at));
                }
                let factor = V::splat(1.0 / sum.sum());
                for at in (0..end).step_by(LANES) {
                    let share = V::load(scores.add(at)).mul_add(factor, V::load(shares.add(at)));
                    share.store(shares.add(at));
                }
            }
        }
    }
}
