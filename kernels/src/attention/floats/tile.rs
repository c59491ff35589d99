//! The computation of a tile of keys and values, in float32, in the thread's own memory.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::mem::size_of;
use std::ops::Range;

use super::product::{Product, VECTORS};
use crate::attention::cells::Ahead;
use crate::attention::{RelativeBias, TILE};
use crate::kv_layer::KvLayer;
use crate::vector::{Kernel, LANES, Storage, Vector};

/// Maximum number of rows at once: with four vectors each they fit into the registers of AVX-512, with one each into
/// those of AVX2.
pub(super) const MAX_ROWS: usize = 6;

/// A head's dimensions, rounded up so that a vector of words, of two 16-bit floats each, fits.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2 * LANES)
}

/// The partial results of pairs of a token and a head.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// Weighted values, `width` per pair.
    pub(super) sums: *mut f32,
    /// The greatest score of each pair.
    pub(super) greatest: *mut f32,
    /// The sum of weights of each pair, in units of the greatest's.
    pub(super) weights: *mut f32,
    pub(super) width: usize,
}

impl State {
    /// # Safety
    ///
    /// The state has `pairs` pairs.
    pub(super) unsafe fn clear(&self, pairs: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            self.sums.write_bytes(0, pairs * self.width);
            std::slice::from_raw_parts_mut(self.greatest, pairs).fill(f32::NEG_INFINITY);
            self.weights.write_bytes(0, pairs);
        }
    }

    /// Take over some pairs of another state.
    ///
    /// # Safety
    ///
    /// Both states have these pairs.
    pub(super) unsafe fn copy(&self, other: &Self, pairs: Range<usize>) {
        let (first, count) = (pairs.start, pairs.len());
        // SAFETY: as the caller promises.
        unsafe {
            self.sums.add(first * self.width).copy_from(other.sums.add(first * self.width), count * self.width);
            self.greatest.add(first).copy_from(other.greatest.add(first), count);
            self.weights.add(first).copy_from(other.weights.add(first), count);
        }
    }
}

/// Copy a head of a query, scaled.
pub(super) struct LoadQueries<X> {
    pub(super) from: *const X,
    pub(super) to: *mut f32,
    pub(super) head_dim: usize,
    pub(super) scale: f32,
}

/// Copy a tile's keys of one head to `[head_dim, TILE]`.
pub(super) struct LoadKeys<'a, C> {
    pub(super) cache: &'a KvLayer,
    pub(super) cells: &'a [usize],
    pub(super) ahead: Ahead<'a>,
    /// The head in the first cell.
    pub(super) from: *const C,
    pub(super) to: *mut f32,
}

/// Copy a tile's values of one head to `[TILE, padded head_dim]`.
pub(super) struct LoadValues<'a, C> {
    pub(super) cache: &'a KvLayer,
    pub(super) cells: &'a [usize],
    pub(super) ahead: Ahead<'a>,
    /// The head in the first cell.
    pub(super) from: *const C,
    pub(super) to: *mut f32,
}

/// Add a tile to the state of some pairs: scores, weights, weighted values.
pub(super) struct Tile {
    pub(super) head_dim: usize,
    pub(super) queries: *const f32,
    pub(super) keys: *const f32,
    pub(super) values: *const f32,
    /// Room for `MAX_ROWS` rows of `TILE`.
    pub(super) scores: *mut f32,
    pub(super) state: State,
    /// The first token's first pair; `pairs` are those that see a part of the tile.
    pub(super) first_pair: usize,
    pub(super) pairs: Range<usize>,
    pub(super) group: usize,
    /// Position of the first token.
    pub(super) position: usize,
    /// The tile's first position.
    pub(super) first: usize,
    pub(super) window: usize,
    /// Positions after its own that a token sees; `end` is the end of what any token sees.
    pub(super) ahead: usize,
    pub(super) end: usize,
    pub(super) soft_cap: Option<f32>,
    /// The slope of each head of the group.
    pub(super) slopes: Option<*const f32>,
    /// The bias of each head of the group.
    pub(super) relative_bias: Option<RelativeBias>,
}

/// `total += partial`, for some pairs.
pub(super) struct Merge {
    pub(super) total: State,
    pub(super) partial: State,
    pub(super) pairs: Range<usize>,
    pub(super) head_dim: usize,
}

/// Divide a pair's sums by its weights, including the sink, and write the result.
pub(super) struct Finish<X> {
    pub(super) state: State,
    pub(super) sink: Option<f32>,
    pub(super) to: *mut X,
    pub(super) value_dim: usize,
}

// SAFETY: a thread makes these for itself.
unsafe impl<X> Sync for LoadQueries<X> {}
// SAFETY: as above.
unsafe impl<C> Sync for LoadKeys<'_, C> {}
// SAFETY: as above.
unsafe impl<C> Sync for LoadValues<'_, C> {}
// SAFETY: as above.
unsafe impl Sync for Tile {}
// SAFETY: as above.
unsafe impl Sync for Merge {}
// SAFETY: as above.
unsafe impl<X> Sync for Finish<X> {}

impl<X: Storage> Kernel for LoadQueries<X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let scale = V::splat(self.scale);
            for at in (0..self.head_dim).step_by(LANES) {
                let query: V = X::load_up_to(self.from.add(at), self.head_dim - at);
                query.mul(scale).store(self.to.add(at));
            }
        }
    }
}

impl<C: Storage> Kernel for LoadKeys<'_, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let numbers_a_word = size_of::<f32>() / size_of::<C>();
        let (head_dim, numbers_at_once) = (self.cache.head_dim, LANES * numbers_a_word);
        for (index, cells) in self.cells.chunks(LANES).enumerate() {
            self.ahead.ask(index, self.cells.len().div_ceil(LANES));
            // The last key is repeated where there are no more: its scores are never used.
            let keys: [*const C; LANES] = std::array::from_fn(|lane| {
                self.from.wrapping_add(cells[lane.min(cells.len() - 1)] * self.cache.cell_stride)
            });
            for at in (0..head_dim).step_by(numbers_at_once) {
                let mut tail = [[0.0_f32; LANES]; LANES];
                // SAFETY: as the caller promises; nothing beyond the head is read.
                let columns = unsafe {
                    if at + numbers_at_once <= head_dim {
                        V::load_transposed(&keys.map(|key| key.wrapping_add(at).cast()))
                    } else {
                        for (&key, tail) in keys.iter().zip(&mut tail) {
                            std::ptr::copy_nonoverlapping(key.add(at), tail.as_mut_ptr().cast(), head_dim - at);
                        }
                        V::load_transposed(&std::array::from_fn(|lane| tail[lane].as_ptr()))
                    }
                };
                let mut to = self.to.wrapping_add(at * TILE + index * LANES);
                for column in columns {
                    // SAFETY: as the caller promises: there is room for all dimensions, padded.
                    unsafe {
                        if numbers_a_word == 1 {
                            column.store(to);
                        } else {
                            let [even, odd] = C::in_words(column);
                            even.store(to);
                            odd.store(to.add(TILE));
                        }
                    }
                    to = to.wrapping_add(numbers_a_word * TILE);
                }
            }
        }
    }
}

impl<C: Storage> Kernel for LoadValues<'_, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let (head_dim, width) = (self.cache.head_dim, padded(self.cache.head_dim));
        for (index, cells) in self.cells.chunks(LANES).enumerate() {
            self.ahead.ask(index, self.cells.len().div_ceil(LANES));
            for (lane, cell) in cells.iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe {
                    let from = self.from.add(cell * self.cache.cell_stride);
                    let to = self.to.add((index * LANES + lane) * width);
                    let mut at = 0;
                    while at + VECTORS * LANES <= head_dim {
                        for vector in 0..VECTORS {
                            C::load::<V>(from.add(at + vector * LANES)).store(to.add(at + vector * LANES));
                        }
                        at += VECTORS * LANES;
                    }
                    while at < head_dim {
                        C::load_up_to::<V>(from.add(at), head_dim - at).store(to.add(at));
                        at += LANES;
                    }
                }
            }
        }
    }
}

impl Kernel for Tile {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let mut pair = self.pairs.start;
        let all_seen = self.all_seen();
        // SAFETY: as the caller promises.
        unsafe {
            while V::ACCUMULATORS >= MAX_ROWS && pair + MAX_ROWS <= all_seen {
                self.rows::<V, MAX_ROWS>(pair);
                pair += MAX_ROWS;
            }
            while V::ACCUMULATORS >= 3 * VECTORS && pair + 3 <= all_seen {
                self.rows::<V, 3>(pair);
                pair += 3;
            }
            // By one vector each; three rows by two would leave no registers for keys.
            while V::ACCUMULATORS < 3 * VECTORS && pair + 4 <= all_seen {
                self.rows::<V, 4>(pair);
                pair += 4;
            }
            while pair < self.pairs.end {
                self.rows::<V, 1>(pair);
                pair += 1;
            }
        }
    }
}

impl Tile {
    /// Add the tile for `ROWS` pairs from `pair` on.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn rows<V: Vector, const ROWS: usize>(&self, pair: usize) {
        let width = self.state.width;
        // Later tokens see more positions, or all.
        let (least, most) = (self.visible(pair), self.visible(pair + ROWS - 1));
        // With several pairs no position is hidden. Hidden ones of a single pair are skipped, as they may be NaN.
        let hidden = if ROWS == 1 { self.hidden(pair) } else { 0 };
        // SAFETY: as the caller promises.
        unsafe {
            let scores = Product {
                left: self.queries.add(pair * width),
                left_stride: width,
                right: self.keys,
                right_stride: TILE,
                out: self.scores,
                out_stride: TILE,
                depth: self.head_dim,
                add: false,
            };
            scores.compute::<V, ROWS>(most.div_ceil(LANES));
            for row in 0..ROWS {
                let (scores, seen) = (self.scores.add(row * TILE), hidden..self.visible(pair + row));
                if let Some(cap) = self.soft_cap {
                    hold_below::<V>(cap, scores, &seen);
                }
                let (token, head) = self.token_and_head(pair + row);
                if let Some(slopes) = self.slopes {
                    #[expect(clippy::cast_precision_loss, reason = "no sequence is as long as 2^24")]
                    let own = (self.position + token) as f32 - self.first as f32;
                    lower_by_distance::<V>(slopes.add(head).read_unaligned(), own, scores, &seen);
                }
                if let Some(bias) = self.relative_bias {
                    add_bias::<V>(bias.from(head, self.position + token, self.first), scores, &seen);
                }
                self.weigh::<V>(pair + row, scores, &seen);
            }
            for at in (0..self.head_dim).step_by(TILE) {
                let vectors = (self.head_dim - at).div_ceil(LANES).min(VECTORS);
                let values = Product {
                    left: self.scores.add(hidden),
                    left_stride: TILE,
                    right: self.values.add(hidden * width + at),
                    right_stride: width,
                    out: self.state.sums.add(pair * width + at),
                    out_stride: width,
                    depth: least - hidden,
                    add: true,
                };
                values.compute::<V, ROWS>(vectors);
                for row in 0..ROWS {
                    let more = self.visible(pair + row) - least;
                    if more > 0 {
                        let rest = Product {
                            left: values.left.add(row * TILE + least), // no position is hidden here
                            right: values.right.add(least * width),
                            out: values.out.add(row * width),
                            depth: more,
                            ..values
                        };
                        rest.compute::<V, 1>(vectors);
                    }
                }
            }
        }
    }

    /// Number of the tile's positions before a pair's end.
    #[inline(always)]
    fn visible(&self, pair: usize) -> usize {
        let end = (self.position + self.token_and_head(pair).0 + 1 + self.ahead).min(self.end);
        (end - self.first).min(TILE)
    }

    /// Number of the tile's first positions that the window hides from a pair.
    #[inline(always)]
    fn hidden(&self, pair: usize) -> usize {
        (self.position + self.token_and_head(pair).0 + 1).saturating_sub(self.window).saturating_sub(self.first)
    }

    /// The token of a pair, and its head in the group.
    #[inline(always)]
    fn token_and_head(&self, pair: usize) -> (usize, usize) {
        ((pair - self.first_pair) / self.group, (pair - self.first_pair) % self.group)
    }

    /// The first pair with positions hidden by the window.
    #[inline(always)]
    fn all_seen(&self) -> usize {
        let tokens = self.first.saturating_add(self.window).saturating_sub(self.position);
        self.first_pair.saturating_add(tokens.saturating_mul(self.group)).clamp(self.pairs.start, self.pairs.end)
    }

    /// Turn a pair's visible scores into weights, and add these to its state.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`.
    #[inline(always)]
    unsafe fn weigh<V: Vector>(&self, pair: usize, scores: *mut f32, seen: &Range<usize>) {
        let State { sums, greatest, weights, width } = self.state;
        // SAFETY: as the caller promises.
        unsafe {
            let (lowest, zero) = (V::splat(f32::NEG_INFINITY), V::splat(0.0));
            let mut maxima = lowest;
            for at in vectors_of(seen) {
                maxima = maxima.max(only(V::load(scores.add(at)), at, seen, lowest));
            }
            let before = *greatest.add(pair);
            let most = maxima.greatest();
            let now = if most > before { most } else { before };
            if now > before {
                let factor = V::splat(before - now).exp();
                *weights.add(pair) *= factor.lowest();
                for at in (0..self.head_dim).step_by(LANES) {
                    let sum = sums.add(pair * width + at);
                    V::load(sum).mul(factor).store(sum);
                }
                *greatest.add(pair) = now;
            }
            let mut total = zero;
            for at in vectors_of(seen) {
                let weight = only(V::load(scores.add(at)).sub(V::splat(now)).exp(), at, seen, zero);
                weight.store(scores.add(at));
                total = total.add(weight);
            }
            *weights.add(pair) += total.sum();
        }
    }
}

/// The starts of the vectors that contain some positions of a tile.
#[inline(always)]
fn vectors_of(seen: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (seen.start / LANES * LANES..seen.end).step_by(LANES)
}

/// The lanes of a vector at `at` that are seen; the others are those of `other`.
#[inline(always)]
fn only<V: Vector>(vector: V, at: usize, seen: &Range<usize>, other: V) -> V {
    let vector = vector.first((seen.end - at).min(LANES), other);
    if at < seen.start { vector.select(u32::MAX << (seen.start - at), other) } else { vector }
}

/// Cap a row of scores (arXiv 2408.00118).
///
/// # Safety
///
/// See `Kernel::run`; the vectors are valid.
#[inline(always)]
unsafe fn hold_below<V: Vector>(cap: f32, scores: *mut f32, seen: &Range<usize>) {
    for at in vectors_of(seen) {
        // SAFETY: as the caller promises.
        unsafe {
            let cap = V::splat(cap);
            V::load(scores.add(at)).div(cap).tanh().mul(cap).store(scores.add(at));
        }
    }
}

/// Subtract a slope times the distance from a row of scores (`ALiBi`, arXiv 2108.12409); `own` is the position of the
/// query, counted from the tile's first one.
///
/// # Safety
///
/// See `Kernel::run`; the vectors are valid.
#[inline(always)]
unsafe fn lower_by_distance<V: Vector>(slope: f32, own: f32, scores: *mut f32, seen: &Range<usize>) {
    for at in vectors_of(seen) {
        // SAFETY: as the caller promises.
        unsafe {
            let (zero, after) = (V::splat(0.0), V::load(POSITIONS.as_ptr().add(at)).sub(V::splat(own)));
            let before = zero.sub(after.max(zero.sub(after)));
            before.mul_add(V::splat(slope), V::load(scores.add(at))).store(scores.add(at));
        }
    }
}

/// Add the bias of a tile's positions to a row of scores.
///
/// # Safety
///
/// See `Kernel::run`; the vectors are valid, also those of the bias.
#[inline(always)]
unsafe fn add_bias<V: Vector>(bias: *const f32, scores: *mut f32, seen: &Range<usize>) {
    for at in vectors_of(seen) {
        // SAFETY: as the caller promises.
        unsafe { V::load(scores.add(at)).add(V::load(bias.wrapping_add(at))).store(scores.add(at)) };
    }
}

/// The positions of a tile, counted from its first one.
#[expect(clippy::cast_precision_loss, reason = "a tile has fewer positions than float32 has whole numbers")]
static POSITIONS: [f32; TILE] = {
    let mut positions = [0.0; TILE];
    let mut position = 0;
    while position < TILE {
        positions[position] = position as f32;
        position += 1;
    }
    positions
};

impl Kernel for Merge {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, _: usize) {
        let Self { total, partial, head_dim, .. } = *self;
        for pair in self.pairs.clone() {
            // SAFETY: as the caller promises.
            unsafe {
                let (a, b) = (*total.greatest.add(pair), *partial.greatest.add(pair));
                let greatest = if a > b { a } else { b };
                let (a, b) = (V::splat(a - greatest).exp(), V::splat(b - greatest).exp());
                *total.greatest.add(pair) = greatest;
                let weights = total.weights.add(pair);
                *weights = *weights * a.lowest() + *partial.weights.add(pair) * b.lowest();
                for at in (0..head_dim).step_by(LANES) {
                    let sum = total.sums.add(pair * total.width + at);
                    let other = V::load(partial.sums.add(pair * partial.width + at));
                    V::load(sum).mul(a).add(other.mul(b)).store(sum);
                }
            }
        }
    }
}

impl<X: Storage> Kernel for Finish<X> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, pair: usize) {
        let State { sums, greatest, weights, width } = self.state;
        // SAFETY: as the caller promises.
        unsafe {
            let (mut weights, mut factor) = (*weights.add(pair), V::splat(1.0)); // times 1, a number stays the same
            if let Some(sink) = self.sink {
                let before = *greatest.add(pair);
                let greatest = if before > sink { before } else { sink };
                factor = V::splat(before - greatest).exp();
                weights = weights * factor.lowest() + V::splat(sink - greatest).exp().lowest();
            }
            let weights = V::splat(weights);
            for at in (0..self.value_dim).step_by(LANES) {
                let sum = V::load(sums.add(pair * width + at)).mul(factor);
                X::store_up_to(sum.div(weights), self.to.add(at), self.value_dim - at);
            }
        }
    }
}
