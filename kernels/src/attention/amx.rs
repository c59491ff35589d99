//! bfloat16 in AMX: products of keys and queries, and of weights and values, with float32 between them.
//!
//! Scores are transposed, one row per key: so keys are multiplied as they lie in the cache, and a vector has one key's
//! scores of a panel: sixteen pairs of a token and a head. The weights are rounded to bfloat16, and their sum is that
//! of the rounded ones.
//!
//! A position that is masked for a pair, but not for others of its panel, has a weight of 0 for that pair; tiles with
//! values that are not finite are computed for each pair alone. So a tile that is masked for a pair leaves all of its
//! numbers unchanged, except for the sign of a zero, which `finish` removes.

mod panels;
mod products;
mod softmax;

use super::plan::Work;
use super::tile_backend::{Call, Step, TileBackend};
use super::{NO_WINDOW, PagedAttention, TILE};
use crate::amx_tiles::Tiles;
use crate::dtype::DType;
use crate::vector::Bfloat16;
use panels::Panels;
use products::{BLOCK_BYTES, DEPTH, SIDE, Values, keys_of, products, scores};
use softmax::{Panel, Seen, Weigh};

/// Whether AMX can compute the op: its heads fill whole tiles, and scores are only scaled. Windows, caps, slopes and
/// biases are left to the vector kernels.
pub(super) fn takes(op: &PagedAttention) -> bool {
    let elements = [op.query.dtype, op.out.dtype, op.cache.dtype];
    let is_plain = op.window == NO_WINDOW && op.soft_cap.is_none() && op.slopes.is_none() && op.relative_bias.is_none();
    let are_whole = [op.cache.head_dim, op.value_dim].iter().all(|size| size.is_multiple_of(DEPTH));
    is_plain && elements == [DType::Bfloat16; 3] && are_whole
}

/// Cost of turning a panel's scores into weights, in units of computing the scores of a head.
const WEIGH_SHARES: usize = 4;

/// The computation of one work.
pub(super) struct Amx<'a> {
    call: Call<'a>,
    work: Work,
    panels: Panels,
    memory: Memory,
    /// None before `start`.
    tiles: Option<Tiles>,
}

/// A work's memory, except its states.
struct Memory {
    /// One head's keys, if they are not contiguous: `[TILE, head_dim]`.
    keys: *mut u8,
    /// One head's values, as blocks.
    values: *mut u8,
    /// One panel's scores: `[TILE, SIDE]`.
    scores: *mut f32,
    /// One panel's weights: `[SIDE, TILE]`.
    weights: *mut u8,
    /// One panel's products: `[SIDE, head_dim]`.
    products: *mut f32,
    /// The queries: a block per panel and `DEPTH` dimensions.
    queries: *mut u8,
    /// The end of each pair's visible positions, `[SIDE]` per panel.
    ends: *mut i32,
}

/// The partial results of pairs, a row each, in units of the weight of the greatest score.
#[derive(Clone, Copy)]
struct State {
    /// `[rows, head_dim]`, in the order of the columns of blocks.
    sums: *mut f32,
    greatest: *mut f32,
    weights: *mut f32,
}

impl<'a> TileBackend<'a> for Amx<'a> {
    fn state_floats(op: &PagedAttention, work: &Work) -> usize {
        Panels::of(op, work).rows() * (op.cache.head_dim + 2)
    }

    fn scratch_floats(op: &PagedAttention, work: &Work) -> usize {
        lengths(op, work).iter().sum::<usize>() / size_of::<f32>()
    }

    unsafe fn new(call: Call<'a>, work: Work, scratch: *mut f32) -> Self {
        let mut at = 0;
        let [keys, values, scores, weights, products, queries, ends] = lengths(call.op, &work).map(|length| {
            let here = scratch.cast::<u8>().wrapping_add(at);
            at += length;
            here
        });
        let memory = Memory {
            keys,
            values,
            scores: scores.cast(),
            weights,
            products: products.cast(),
            queries,
            ends: ends.cast(),
        };
        Self { call, work, panels: Panels::of(call.op, &work), memory, tiles: None }
    }

    unsafe fn start(&mut self) {
        let (PagedAttention { query, cache, .. }, group) = (self.call.op, self.call.op.group());
        for panel in 0..self.panels.count {
            let pairs: [_; SIDE] =
                std::array::from_fn(|lane| self.work.token_and_head(self.panels.pair(panel, lane), group));
            let position = |token| self.work.position + token - self.work.first_token;
            let end = |token| self.call.op.end(position(token), self.work.end) as i32;
            let query = |token, head| query.row::<Bfloat16>(token).wrapping_add(head * cache.head_dim).cast_const();
            let queries = pairs.map(|(token, head)| query(token, head).cast());
            // SAFETY: as the caller promises.
            unsafe {
                self.ends(panel).write(pairs.map(|(token, _)| end(token)));
                products::load_queries(&queries, cache.head_dim, self.queries(panel));
            }
        }
        // SAFETY: as the caller promises: this is AMX.
        self.tiles = Some(unsafe { Tiles::configure(&products::configuration(self.panels.lanes)) });
    }

    unsafe fn clear(&self, state: *mut f32) {
        let (state, rows) = (self.state(state), self.panels.rows());
        // SAFETY: as the caller promises.
        unsafe {
            state.sums.write_bytes(0, rows * self.call.op.cache.head_dim);
            std::slice::from_raw_parts_mut(state.greatest, rows).fill(softmax::LOWEST);
            state.weights.write_bytes(0, rows);
        }
    }

    unsafe fn take(&self, step: &Step<'_>, state: *mut f32) {
        for first in (0..self.work.num_kv_heads).step_by(self.panels.heads) {
            // SAFETY: as the caller promises.
            unsafe { self.take_heads(step, first, self.state(state)) };
        }
    }

    /// A split that is masked for a pair leaves its numbers unchanged.
    unsafe fn merge(&self, total: *mut f32, partial: *mut f32, _: usize) {
        for panel in 0..self.panels.count {
            let [total, partial] = [total, partial].map(|state| self.panel(self.state(state), panel));
            // SAFETY: as the caller promises.
            unsafe { total.merge(&partial, self.call.op.cache.head_dim) };
        }
    }

    unsafe fn finish(&self, total: *mut f32) {
        let (PagedAttention { out, value_dim, cache, .. }, group) = (self.call.op, self.call.op.group());
        let state = self.state(total);
        for pair in 0..self.work.pairs(group) {
            let ((token, head), row) = (self.work.token_and_head(pair, group), self.panels.row(pair));
            // SAFETY: as the caller promises.
            unsafe {
                let (sums, to) = (state.sums.add(row * cache.head_dim), out.row::<Bfloat16>(token));
                let weights = *state.weights.add(row);
                let (factor, weights) = match self.call.op.sink(head) {
                    None => (1.0, weights), // times 1, a number stays the same
                    Some(sink) => softmax::with_sink(*state.greatest.add(row), weights, sink),
                };
                products::finish(sums, factor, weights, *value_dim, to.add(head * value_dim));
            }
        }
    }
}

impl Amx<'_> {
    /// Add a tile for the panels of a KV head, or for the panel of several heads.
    ///
    /// # Safety
    ///
    /// See `take`.
    unsafe fn take_heads(&self, step: &Step<'_>, first_head: usize, state: State) {
        let (op, memory, panels, cells) = (self.call.op, &self.memory, &self.panels, step.cells.get());
        let (cache, num_heads) = (&op.cache, panels.heads.min(self.work.num_kv_heads - first_head));
        let lanes = |index: usize| index * panels.lanes..(index + 1) * panels.lanes;
        let values = |index: usize| Values {
            cache,
            cells,
            head: self.work.first_kv_head + first_head + index,
            to: memory.values,
        };
        // The next tile is prefetched along the way, once.
        let parts = self.work.num_kv_heads.div_ceil(panels.heads);
        let mut ahead = step.coming.ahead(cache, first_head / panels.heads, parts);
        let shares = 3 * num_heads + WEIGH_SHARES;
        let all_see_all = op.end(self.work.position, self.work.end) >= step.first + cells.len();
        for (index_of_panel, panel) in panels.of_head(first_head).enumerate() {
            let (state, ends) = (self.panel(state, panel), self.ends(panel));
            // SAFETY: as the caller promises.
            unsafe {
                for index in 0..num_heads {
                    let head = self.work.first_kv_head + first_head + index;
                    let keys = keys_of(cache, cells, head, memory.keys, index_of_panel == 0);
                    let lane = lanes(index).start;
                    let queries = self.queries(panel).add(lane * size_of::<f32>());
                    let share = ahead.share(index..index + 1, shares);
                    scores(&keys, queries, cache.head_dim, memory.scores.add(lane), &share);
                }
                let seen = Seen { ends: &*ends, first: step.first, count: cells.len(), all: all_see_all };
                let weigh = Weigh { scores: memory.scores, scale: op.scale, seen, to: memory.weights };
                let share = ahead.share(num_heads..num_heads + WEIGH_SHARES, shares);
                let factors = weigh.run(&state, panels.lanes * num_heads, &share);
                for index in 0..num_heads {
                    let share = num_heads + WEIGH_SHARES + 2 * index;
                    if index_of_panel == 0 {
                        values(index).load(cells.len(), &ahead.share(share..share + 1, shares));
                    }
                    if all_see_all || values(index).are_finite() {
                        let share = ahead.share(share + 1..share + 2, shares);
                        products(memory.weights, memory.values, cache.head_dim, lanes(index), memory.products, &share);
                        state.add(lanes(index), &factors, memory.products, cache.head_dim);
                        continue;
                    }
                    let nothing = ahead.share(0..0, 1);
                    for row in lanes(index) {
                        values(index).load(seen.of(row), &nothing);
                        products(
                            memory.weights,
                            memory.values,
                            cache.head_dim,
                            lanes(index),
                            memory.products,
                            &nothing,
                        );
                        state.add(row..row + 1, &factors, memory.products, cache.head_dim);
                    }
                    values(index).load(cells.len(), &nothing);
                }
            }
            ahead = ahead.share(0..0, 1);
        }
    }

    /// The blocks of a panel's queries.
    fn queries(&self, panel: usize) -> *mut u8 {
        self.memory.queries.wrapping_add(panel * (self.call.op.cache.head_dim / DEPTH) * BLOCK_BYTES)
    }

    /// The ends of a panel's pairs.
    fn ends(&self, panel: usize) -> *mut [i32; SIDE] {
        self.memory.ends.wrapping_add(panel * SIDE).cast()
    }

    /// The parts of a state.
    fn state(&self, memory: *mut f32) -> State {
        let rows = self.panels.rows();
        let greatest = memory.wrapping_add(rows * self.call.op.cache.head_dim);
        State { sums: memory, greatest, weights: greatest.wrapping_add(rows) }
    }

    fn panel(&self, state: State, panel: usize) -> Panel {
        let row = panel * SIDE;
        Panel {
            sums: state.sums.wrapping_add(row * self.call.op.cache.head_dim),
            greatest: state.greatest.wrapping_add(row),
            weights: state.weights.wrapping_add(row),
        }
    }
}

/// Bytes of keys, values, scores, weights, products, queries and ends: whole cache lines.
fn lengths(op: &PagedAttention, work: &Work) -> [usize; 7] {
    let (head_bytes, rows) = (op.cache.head_dim * size_of::<Bfloat16>(), Panels::of(op, work).rows());
    let tile = TILE * head_bytes;
    [tile, tile, TILE * SIDE * 4, SIDE * TILE * 2, SIDE * 2 * head_bytes, rows * head_bytes, rows * 4]
}
