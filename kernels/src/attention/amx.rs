//! bfloat16 in AMX: products of keys and queries, and of weights and values, with float32 between them.
//!
//! Scores come transposed, a row a key: so keys are multiplied as they lie in the cache, and a vector has the scores of one
//! key and sixteen pairs of a token and a head, which are a panel. The weights are rounded to bfloat16, and their sum is
//! that of the rounded ones.
//!
//! A position that a pair does not see, but others of its panel do, has a weight of 0 for it, and values of such a tile
//! which are no finite numbers are taken for each pair on its own: so a tile of which a pair sees nothing leaves all of its
//! numbers as they are, but for the sign of a zero, which `finish` takes off.

mod panels;
mod products;
mod softmax;

use super::plan::Work;
use super::way::{Call, Step, Way};
use super::{PagedAttention, TILE};
use crate::linear::Element;
use crate::tiles::Tiles;
use crate::vector::Bfloat16;
use panels::Panels;
use products::{BLOCK_BYTES, DEPTH, SIDE, Values, keys_of, products, scores};
use softmax::{Panel, Weigh};

/// Whether tiles can take the op: its heads have whole ones only.
pub(super) fn takes(op: &PagedAttention) -> bool {
    let elements = [op.query.element, op.out.element, op.cache.element];
    elements == [Element::Bfloat16; 3] && op.cache.head_dim.is_multiple_of(DEPTH)
}

/// One work.
pub(super) struct Amx<'a> {
    call: Call<'a>,
    work: Work,
    panels: Panels,
    memory: Memory,
    /// Configured from `start` on.
    tiles: Option<Tiles>,
}

/// What a work needs beside its states.
struct Memory {
    /// Of one head, where they lie scattered: [TILE, head_dim].
    keys: *mut u8,
    /// Of one head, as blocks.
    values: *mut u8,
    /// Of one panel: [TILE, SIDE].
    scores: *mut f32,
    /// Of one panel: [SIDE, TILE].
    weights: *mut u8,
    /// Of one panel: [SIDE, head_dim].
    products: *mut f32,
    /// A block of each panel and `DEPTH` dimensions.
    queries: *mut u8,
}

/// What pairs have summed up, a row each, and in units of the greatest score's weight.
#[derive(Clone, Copy)]
struct State {
    /// [rows, head_dim], in the order of the columns of blocks.
    sums: *mut f32,
    greatest: *mut f32,
    weights: *mut f32,
}

impl<'a> Way<'a> for Amx<'a> {
    fn state_floats(op: &PagedAttention, work: &Work) -> usize {
        Panels::of(op, work).rows() * (op.cache.head_dim + 2)
    }

    fn scratch_floats(op: &PagedAttention, work: &Work) -> usize {
        lengths(op, work).iter().sum::<usize>() / size_of::<f32>()
    }

    unsafe fn new(call: Call<'a>, work: Work, scratch: *mut f32) -> Self {
        let mut at = 0;
        let [keys, values, scores, weights, products, queries] = lengths(call.op, &work).map(|length| {
            let here = scratch.cast::<u8>().wrapping_add(at);
            at += length;
            here
        });
        let memory = Memory { keys, values, scores: scores.cast(), weights, products: products.cast(), queries };
        Self { call, work, panels: Panels::of(call.op, &work), memory, tiles: None }
    }

    unsafe fn start(&mut self) {
        let (PagedAttention { query, cache, .. }, group) = (self.call.op, self.call.op.group());
        for panel in 0..self.panels.num_panels {
            let pairs = std::array::from_fn(|lane| {
                let (token, head) = self.work.token_and_head(self.panels.pair(panel, lane), group);
                query.row::<Bfloat16>(token).wrapping_add(head * cache.head_dim).cast_const().cast()
            });
            // SAFETY: as the caller promises.
            unsafe { products::load_queries(&pairs, cache.head_dim, self.queries(panel)) };
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

    /// A split of which a pair sees nothing leaves its numbers as they are.
    unsafe fn merge(&self, total: *mut f32, partial: *mut f32, _: usize) {
        for panel in 0..self.panels.num_panels {
            let [total, partial] = [total, partial].map(|state| self.panel(self.state(state), panel));
            // SAFETY: as the caller promises.
            unsafe { total.merge(&partial, self.call.op.cache.head_dim) };
        }
    }

    unsafe fn finish(&self, total: *mut f32) {
        let (PagedAttention { out, cache, .. }, group) = (self.call.op, self.call.op.group());
        let state = self.state(total);
        for pair in 0..self.work.pairs(group) {
            let ((token, head), row) = (self.work.token_and_head(pair, group), self.panels.row(pair));
            // SAFETY: as the caller promises.
            unsafe {
                let (sums, to) = (state.sums.add(row * cache.head_dim), out.row::<Bfloat16>(token));
                products::finish(sums, *state.weights.add(row), cache.head_dim, to.add(head * cache.head_dim));
            }
        }
    }
}

impl Amx<'_> {
    /// The panels of a KV head, or the one of some heads.
    ///
    /// # Safety
    ///
    /// As for `take`.
    unsafe fn take_heads(&self, step: &Step<'_>, first_head: usize, state: State) {
        let (op, memory, panels, cells) = (self.call.op, &self.memory, &self.panels, step.cells.get());
        let (cache, parts) = (&op.cache, self.work.num_kv_heads);
        let heads = first_head..parts.min(first_head + panels.heads);
        let all_see_all = self.work.position + 1 >= step.first + cells.len();
        for panel in panels.of_head(first_head) {
            let state = self.panel(state, panel);
            let visible = self.visible(step, panel);
            let first_panel = panel == panels.of_head(first_head).start;
            // SAFETY: as the caller promises.
            unsafe {
                for head in heads.clone() {
                    let lane = (head - first_head) * panels.lanes;
                    if first_panel {
                        step.coming.ahead(cache, head, parts)[0].ask(0, 1);
                    }
                    let keys = keys_of(cache, cells, self.work.first_kv_head + head, memory.keys, first_panel);
                    let queries = self.queries(panel).add(lane * size_of::<f32>());
                    scores(&keys, queries, cache.head_dim, memory.scores.add(lane));
                }
                let weigh = Weigh { scores: memory.scores, scale: op.scale, visible: &visible, to: memory.weights };
                let factors = weigh.run(&state, panels.lanes * heads.len());
                for head in heads.clone() {
                    let lane = (head - first_head) * panels.lanes;
                    let values = Values { cache, cells, head: self.work.first_kv_head + head, to: memory.values };
                    if first_panel {
                        step.coming.ahead(cache, head, parts)[1].ask(0, 1);
                        values.load(cells.len());
                    }
                    let rows = lane..lane + panels.lanes;
                    if all_see_all || values.are_finite() {
                        products(memory.weights, memory.values, cache.head_dim, rows.clone(), memory.products);
                        state.add(rows, &factors, memory.products, cache.head_dim);
                    } else {
                        for row in rows.clone() {
                            values.load(visible[row].max(0) as usize);
                            products(memory.weights, memory.values, cache.head_dim, rows.clone(), memory.products);
                            state.add(row..row + 1, &factors, memory.products, cache.head_dim);
                        }
                        values.load(cells.len());
                    }
                }
            }
        }
    }

    /// How many of a tile's positions the pairs of a panel see: none where it is not positive.
    fn visible(&self, step: &Step<'_>, panel: usize) -> [i32; SIDE] {
        let group = self.call.op.group();
        std::array::from_fn(|lane| {
            let (token, _) = self.work.token_and_head(self.panels.pair(panel, lane), group);
            let seen = (self.work.position + token - self.work.first_token + 1) as i32 - step.first as i32;
            seen.min(step.cells.count as i32)
        })
    }

    /// The blocks of a panel's queries.
    fn queries(&self, panel: usize) -> *mut u8 {
        self.memory.queries.wrapping_add(panel * (self.call.op.cache.head_dim / DEPTH) * BLOCK_BYTES)
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

/// Bytes of keys, values, scores, weights, products and queries: whole lines of the cache.
fn lengths(op: &PagedAttention, work: &Work) -> [usize; 6] {
    let head_bytes = op.cache.head_dim * size_of::<Bfloat16>();
    let queries = Panels::of(op, work).rows() * head_bytes;
    [TILE * head_bytes, TILE * head_bytes, TILE * SIDE * 4, SIDE * TILE * 2, SIDE * 2 * head_bytes, queries]
}
