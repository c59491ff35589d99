//! One call of the op: its works, their splits and the tiles of those, in order. A `TileBackend` computes the numbers
//! of a tile.

use std::cell::RefCell;
use std::ops::Range;

use super::cells::Cells;
use super::plan::{Plan, Work};
use super::{PagedAttention, Sequences, TILE};
use crate::isa::Isa;
use crate::memory::scratch;
use crate::threads::Pool;

/// The data of a call that all threads share.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) op: &'a PagedAttention,
    pub(super) sequences: &'a Sequences<'a>,
    pub(super) isa: Isa,
}

/// A tile of keys and values.
pub(super) struct Step<'a> {
    pub(super) cells: &'a Cells,
    /// The next tile, to be prefetched.
    pub(super) coming: &'a Cells,
    /// The first position.
    pub(super) first: usize,
}

/// The computation of one work. A state has the partial results of its pairs of a token and a head.
pub(super) trait TileBackend<'a>: Sized {
    /// Floats of a work's state.
    fn state_floats(op: &PagedAttention, work: &Work) -> usize;
    /// Floats of scratch memory.
    fn scratch_floats(op: &PagedAttention, work: &Work) -> usize;

    /// # Safety
    ///
    /// See `Op::run`; the indices were checked, the backend takes the op, and there is enough scratch, from the
    /// start of a cache line on. The same holds for the methods below, and for states.
    unsafe fn new(call: Call<'a>, work: Work, scratch: *mut f32) -> Self;
    /// Get ready for tiles.
    ///
    /// # Safety
    ///
    /// See `new`.
    unsafe fn start(&mut self);
    /// # Safety
    ///
    /// See `new`.
    unsafe fn clear(&self, state: *mut f32);
    /// Sum a tile up, after `start`.
    ///
    /// # Safety
    ///
    /// See `new`.
    unsafe fn take(&self, step: &Step<'_>, state: *mut f32);
    /// Add a later split to those before it.
    ///
    /// # Safety
    ///
    /// See `new`.
    unsafe fn merge(&self, total: *mut f32, partial: *mut f32, split: usize);
    /// Write the result.
    ///
    /// # Safety
    ///
    /// See `new`.
    unsafe fn finish(&self, total: *mut f32);
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// # Safety
///
/// See `Op::run`; the indices were checked, and the backend takes the op.
pub(super) unsafe fn attend<'a, B: TileBackend<'a>>(call: &Call<'a>, pool: &mut Pool) {
    PLAN.with_borrow_mut(|plan| {
        plan.make(call.sequences, call.op, pool.num_threads());
        let floats_a_split = plan.merges.iter().map(|work| B::state_floats(call.op, work)).max().unwrap_or(0);
        plan.partials.resize(plan.num_partials * floats_a_split, 0.0);
        let partials = Shared(plan.partials.as_mut_ptr());
        pool.run(plan.works.len(), &|index| {
            let work = &plan.works[index];
            // The thread's next work, unless another thread takes it.
            let next = plan.works.get(index + 1);
            // SAFETY: as the caller promises; a work writes what is its own: its tokens and heads, or its partials.
            unsafe {
                match work.partial {
                    None => whole::<B>(call, work, next),
                    Some(partial) => split::<B>(call, work, next, partials.at(partial * floats_a_split)),
                }
            }
        });
        pool.run(plan.merges.len(), &|index| {
            // SAFETY: as above; the partials were written by the works before.
            unsafe { merge::<B>(call, &plan.merges[index], partials.at(0), floats_a_split) };
        });
    });
}

/// Compute all splits of a work, one after the other.
///
/// # Safety
///
/// See `attend`.
unsafe fn whole<'a, B: TileBackend<'a>>(call: &Call<'a>, work: &Work, next: Option<&Work>) {
    let state_floats = B::state_floats(call.op, work).next_multiple_of(LINE_FLOATS);
    let scratch = scratch::of_thread(2 * state_floats + B::scratch_floats(call.op, work));
    // SAFETY: there is so much memory, and the rest as the caller promises.
    unsafe {
        let (total, partial) = (scratch, scratch.add(state_floats));
        let mut backend = B::new(*call, *work, partial.add(state_floats));
        backend.start();
        let mut splits = work.splits();
        splits.next().into_iter().for_each(|first| sum_split(call, work, first, next, &backend, total));
        for split in splits {
            sum_split(call, work, split, next, &backend, partial);
            backend.merge(total, partial, split);
        }
        backend.finish(total);
    }
}

/// Compute the one split of a work, into a state of the caller's.
///
/// # Safety
///
/// See `attend`; the memory is that of a state.
unsafe fn split<'a, B: TileBackend<'a>>(call: &Call<'a>, work: &Work, next: Option<&Work>, state: *mut f32) {
    // SAFETY: there is so much memory, and the rest as the caller promises.
    unsafe {
        let mut backend = B::new(*call, *work, scratch::of_thread(B::scratch_floats(call.op, work)));
        backend.start();
        sum_split(call, work, work.split, next, &backend, state);
    }
}

/// Merge the splits of a work, which lie one after the other from the work's partial on.
///
/// # Safety
///
/// See `attend`; every split was summed up.
unsafe fn merge<'a, B: TileBackend<'a>>(call: &Call<'a>, work: &Work, partials: *mut f32, floats_a_split: usize) {
    let first = work.partial.unwrap_or_default();
    // SAFETY: as the caller promises.
    unsafe {
        let backend = B::new(*call, *work, scratch::of_thread(B::scratch_floats(call.op, work)));
        let total = partials.add(first * floats_a_split);
        for (partial, split) in (first..).zip(work.splits()).skip(1) {
            backend.merge(total, partials.add(partial * floats_a_split), split);
        }
        backend.finish(total);
    }
}

/// # Safety
///
/// See `attend`; the backend has started, and the memory is that of a state.
unsafe fn sum_split<'a, B: TileBackend<'a>>(
    call: &Call<'a>,
    work: &Work,
    split: usize,
    next: Option<&Work>,
    backend: &B,
    state: *mut f32,
) {
    let positions = work.positions(split);
    let end = positions.end;
    // SAFETY: as the caller promises.
    unsafe { backend.clear(state) };
    let (mut cells, mut coming) = (Cells::default(), Cells::default());
    call.find_cells(work, positions.clone(), &mut coming);
    for first in positions.step_by(TILE) {
        std::mem::swap(&mut cells, &mut coming);
        match next {
            _ if first + TILE < end => call.find_cells(work, first + TILE..end, &mut coming),
            Some(next) => call.find_cells(next, next.positions(next.split), &mut coming),
            None => coming.count = 0,
        }
        // SAFETY: as the caller promises.
        unsafe { backend.take(&Step { cells: &cells, coming: &coming, first }, state) };
    }
}

impl Call<'_> {
    /// Find the cells of the first tile in a range of a work's positions.
    fn find_cells(&self, work: &Work, positions: Range<usize>, cells: &mut Cells) {
        cells.count = TILE.min(positions.len());
        cells.heads = work.first_kv_head..work.first_kv_head + work.num_kv_heads;
        // Positions before the window may have no block any more; a visible one is loaded in their place.
        let hidden = work.begin.saturating_sub(positions.start);
        let (before, seen) = cells.offsets[..cells.count].split_at_mut(hidden);
        self.sequences.cells(work.row, positions.start + hidden, &self.op.cache, seen);
        before.fill(seen[0]);
    }
}

/// Floats of a cache line.
const LINE_FLOATS: usize = 16;

/// A pointer that threads write through, each to a part of its own.
struct Shared(*mut f32);

// SAFETY: a work writes to its own partial.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}
