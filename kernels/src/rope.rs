//! The norm of each head of query and key, before or after their rotary position embedding (arXiv 2104.09864), and the
//! write of key and value into the paged cache.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;
use crate::execution::execute;
use crate::isa::Isa;
use crate::kv_layer::{KvLayer, check_value_dim};
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range, run_rows};
use crate::threads::Pool;
use crate::vector::{Kernel, LANES, Storage, Vector, for_dtype};

/// Works in place. The halves of a head's first dimensions form its pairs, as many as the table has; the rest stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeAndKvWrite {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// A row is a token: its heads, one after the other.
    pub(crate) query: Matrix,
    pub(crate) positions: Indices,
    /// float32; a row is a position: the cosines of the pairs, then the sines.
    pub(crate) cos_sin: Matrix,
    pub(crate) num_positions: usize,
    pub(crate) norm: Option<HeadNorm>,
    /// Address of a float32 factor of the query for each position.
    pub(crate) query_scales: Option<usize>,
    /// None: the query alone is rotated.
    pub(crate) written: Option<Written>,
}

/// The new keys and values, rows like those of the query and of its dtype, and their place. A head's value may have fewer
/// numbers than the cache has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) value_dim: usize,
    /// A place in the cache for each token, `block * block_size + offset`; negative: none.
    pub(crate) slot_mapping: Indices,
    pub(crate) cache: KvLayer,
}

/// Root mean square normalisation of each head (arXiv 1910.07467). The weights are one row each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadNorm {
    pub(crate) query_weight: Matrix,
    pub(crate) key_weight: Matrix,
    pub(crate) epsilon: f32,
    /// Whether the heads are rotated first.
    pub(crate) after_rotation: bool,
}

/// A `QKNorm` of Python.
#[derive(FromPyObject)]
pub(crate) struct NormArrays {
    query_weight: Array,
    key_weight: Array,
    epsilon: f32,
    after_rotation: bool,
}

#[pyfunction]
#[pyo3(signature = (query, key, value, positions, cos_sin, slot_mapping, key_cache, value_cache, norm, query_scales))]
#[expect(clippy::too_many_arguments, reason = "an op has what its function in Python says")]
pub(crate) fn rope_and_kv_write(
    py: Python<'_>,
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    cos_sin: Array,
    slot_mapping: Array,
    key_cache: Array,
    value_cache: Array,
    norm: Option<NormArrays>,
    query_scales: Option<Array>,
) -> PyResult<()> {
    let [tokens, _, head_dim] = query.dimensions("query")?;
    let cache = KvLayer::of(&key_cache, &value_cache, head_dim)?;
    if query_scales.is_some() && norm.as_ref().is_some_and(|norm| norm.after_rotation) {
        return Err(PyValueError::new_err("a norm after the rotation would undo query_scales: give one of them"));
    }
    let op = read_rope(&query, &positions, &cos_sin)?;
    let (dtype, of_key) = (op.query.dtype, [tokens, cache.kv_heads, head_dim]);
    let mut arrays = vec![&query, &key, &value, &positions, &cos_sin, &slot_mapping, &key_cache, &value_cache];
    let head_norm = match &norm {
        None => None,
        Some(norm) => {
            arrays.extend([&norm.query_weight, &norm.key_weight]);
            Some(HeadNorm {
                query_weight: norm.query_weight.vector("a norm's weight", head_dim)?,
                key_weight: norm.key_weight.vector("a norm's weight", head_dim)?,
                epsilon: norm.epsilon,
                after_rotation: norm.after_rotation,
            })
        }
    };
    arrays.extend(&query_scales);
    let scales = query_scales.as_ref().map(|scales| scales.elements("query_scales", "float32", &[op.num_positions]));
    let [.., value_dim] = value.dimensions::<3>("value")?;
    check_value_dim(value_dim, head_dim)?;
    let written = Written {
        key: key.heads("key", dtype, of_key)?,
        value: value.heads("value", dtype, [tokens, cache.kv_heads, value_dim])?,
        value_dim,
        slot_mapping: slot_mapping.indices("slot_mapping", &[tokens])?,
        cache,
    };
    let op = RopeAndKvWrite { norm: head_norm, query_scales: scales.transpose()?, written: Some(written), ..op };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &arrays) }
}

/// The rotation of a query whose layer reads the keys and values of another one.
#[pyfunction]
pub(crate) fn rope(py: Python<'_>, query: Array, positions: Array, cos_sin: Array) -> PyResult<()> {
    let op = read_rope(&query, &positions, &cos_sin)?;
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&query, &positions, &cos_sin]) }
}

fn read_rope(query: &Array, positions: &Array, cos_sin: &Array) -> PyResult<RopeAndKvWrite> {
    let shape @ [tokens, heads, head_dim] = query.dimensions("query")?;
    let [num_positions, rotary_size] = cos_sin.dimensions("cos_sin")?;
    if !rotary_size.is_multiple_of(2) || rotary_size > head_dim {
        return Err(PyValueError::new_err(format!(
            "{rotary_size} dimensions of heads of {head_dim} cannot be rotated in pairs: give an even number, at most \
             those"
        )));
    }
    let table = cos_sin.elements("cos_sin", "float32", &[num_positions, rotary_size])?;
    Ok(RopeAndKvWrite {
        tokens,
        heads,
        head_dim,
        query: query.heads("query", query.dtype("query")?, shape)?,
        positions: positions.indices("positions", &[tokens])?,
        cos_sin: Matrix { dtype: DType::Float32, address: table, stride: rotary_size },
        num_positions,
        norm: None,
        query_scales: None,
        written: None,
    })
}

impl Op for RopeAndKvWrite {
    fn name(&self) -> &'static str {
        if self.written.is_some() { "rope_and_kv_write" } else { "rope" }
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let positions = unsafe { self.positions.first(extent.tokens) };
        check_range("position", positions, 0..self.num_positions as i64)?;
        let mut slots: &[i32] = &[];
        if let Some(Written { slot_mapping, cache, .. }) = self.written {
            // SAFETY: as the caller promises.
            slots = unsafe { slot_mapping.first(extent.tokens) };
            check_range("entry of the slot mapping", slots, i64::from(i32::MIN)..cache.num_slots() as i64)?;
        }
        let of_cache = self.written.map_or(self.query.dtype, |written| written.cache.dtype);
        // SAFETY: as the caller promises; positions and slots were checked.
        unsafe {
            for_dtype!(self.query.dtype, X => {
                for_dtype!(of_cache, C => self.run_as::<X, C>(positions, slots, isa, pool));
            });
        }
        Ok(())
    }
}

impl RopeAndKvWrite {
    /// # Safety
    ///
    /// See `Op::run`; the heads are made of X and the cache of C, and the indices are valid for it and the table.
    unsafe fn run_as<X: Storage, C: Storage>(&self, positions: &[i32], slots: &[i32], isa: Isa, pool: &mut Pool) {
        let kernel = Token::<X, C> { op: self, positions, slots, elements: PhantomData };
        let kv_heads = self.written.map_or(0, |written| written.cache.kv_heads);
        let width = (self.heads + 2 * kv_heads) * self.head_dim;
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, positions.len(), width, isa, pool, &|_| {}) }
    }
}

struct Token<'a, X, C> {
    op: &'a RopeAndKvWrite,
    positions: &'a [i32],
    /// Empty if nothing is written.
    slots: &'a [i32],
    elements: PhantomData<(X, C)>,
}

impl<X: Storage, C: Storage> Kernel for Token<'_, X, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, token: usize) {
        let RopeAndKvWrite { heads, head_dim, query, cos_sin, norm, query_scales, written, .. } = *self.op;
        let position = self.positions[token] as usize;
        let queries = Heads { first: query.row::<X>(token), count: heads, size: head_dim };
        let keys = written.map(|written| Heads {
            first: written.key.row::<X>(token),
            count: written.cache.kv_heads,
            size: head_dim,
        });
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(norm) = norm.filter(|norm| !norm.after_rotation) {
                queries.normalise_by::<V>(norm.query_weight, norm.epsilon);
                if let Some(keys) = &keys {
                    keys.normalise_by::<V>(norm.key_weight, norm.epsilon);
                }
            }
            let (rotary_size, cos_sin) = (cos_sin.stride, cos_sin.row::<f32>(position));
            if let Some(keys) = &keys {
                keys.rotate::<V, false>(rotary_size, cos_sin, 1.0);
            }
            match query_scales {
                None => queries.rotate::<V, false>(rotary_size, cos_sin, 1.0),
                Some(scales) => {
                    let scale = *std::ptr::with_exposed_provenance::<f32>(scales).add(position);
                    queries.rotate::<V, true>(rotary_size, cos_sin, scale);
                }
            }
            if let Some(norm) = norm.filter(|norm| norm.after_rotation) {
                queries.normalise_by::<V>(norm.query_weight, norm.epsilon);
                if let Some(keys) = &keys {
                    keys.normalise_by::<V>(norm.key_weight, norm.epsilon);
                }
            }
            if let Some(Written { key, value, value_dim, cache, .. }) = written
                && let Ok(slot) = usize::try_from(self.slots[token])
            {
                let cell = cache.cell(slot);
                copy::<V, X, C>(key.row(token), cache.keys::<C>(cell), cache.width());
                let (from, to) = (value.row::<X>(token), cache.values::<C>(cell));
                if value_dim == head_dim {
                    copy::<V, X, C>(from, to, cache.width());
                } else {
                    for head in 0..cache.kv_heads {
                        copy::<V, X, C>(from.add(head * value_dim), to.add(head * head_dim), value_dim);
                    }
                }
            }
        }
    }
}

/// A token's heads, one after the other.
struct Heads<X> {
    first: *mut X,
    count: usize,
    size: usize,
}

impl<X: Storage> Heads<X> {
    /// # Safety
    ///
    /// See `Kernel::run`; the heads and the weight are valid.
    #[inline(always)]
    unsafe fn normalise_by<V: Vector>(&self, weight: Matrix, epsilon: f32) {
        // SAFETY: as the caller promises.
        unsafe { for_dtype!(weight.dtype, W => self.normalise::<V, W>(weight.row(0), epsilon)) }
    }

    /// # Safety
    ///
    /// See `normalise_by`.
    #[inline(always)]
    unsafe fn normalise<V: Vector, W: Storage>(&self, weight: *const W, epsilon: f32) {
        for head in 0..self.count {
            // SAFETY: as the caller promises.
            unsafe {
                let numbers = self.first.add(head * self.size);
                let mut squares = V::splat(0.0);
                for at in (0..self.size).step_by(LANES) {
                    let x: V = X::load_up_to(numbers.add(at), self.size - at);
                    squares = x.mul_add(x, squares);
                }
                #[expect(clippy::cast_precision_loss, reason = "no head is as wide as 2^24")]
                let mean = squares.sum() / self.size as f32;
                let inverse_rms = V::splat(1.0 / (mean + epsilon).sqrt());
                for at in (0..self.size).step_by(LANES) {
                    let left = self.size - at;
                    let x: V = X::load_up_to(numbers.add(at), left);
                    let weight = W::load_up_to(weight.add(at), left);
                    X::store_up_to(x.mul(inverse_rms).mul(weight), numbers.add(at), left);
                }
            }
        }
    }

    /// Rotate the first dimensions of each head; `SCALED`, also multiply each of its dimensions by `scale`.
    ///
    /// # Safety
    ///
    /// See `Kernel::run`; the heads and the table's row are valid.
    #[inline(always)]
    unsafe fn rotate<V: Vector, const SCALED: bool>(&self, rotary_size: usize, cos_sin: *const f32, scale: f32) {
        let half = rotary_size / 2;
        // SAFETY: as the caller promises.
        unsafe {
            let scale = V::splat(scale);
            let scaled = |x: V| if SCALED { x.mul(scale) } else { x };
            for at in (0..half).step_by(LANES) {
                let left = half - at;
                let cos: V = f32::load_up_to(cos_sin.add(at), left);
                let sin: V = f32::load_up_to(cos_sin.add(half + at), left);
                let minus_sin = V::splat(0.0).sub(sin);
                for head in 0..self.count {
                    let first = self.first.add(head * self.size + at);
                    let second = first.add(half);
                    let (a, b): (V, V) = (X::load_up_to(first, left), X::load_up_to(second, left));
                    X::store_up_to(scaled(a.mul_add(cos, b.mul(minus_sin))), first, left);
                    X::store_up_to(scaled(b.mul_add(cos, a.mul(sin))), second, left);
                }
            }
            if SCALED {
                for head in 0..self.count {
                    let numbers = self.first.add(head * self.size);
                    for at in (rotary_size..self.size).step_by(LANES) {
                        let left = self.size - at;
                        X::store_up_to(scaled(X::load_up_to(numbers.add(at), left)), numbers.add(at), left);
                    }
                }
            }
        }
    }
}

/// # Safety
///
/// See `Kernel::run`; `count` numbers are valid.
#[inline(always)]
unsafe fn copy<V: Vector, X: Storage, C: Storage>(from: *const X, to: *mut C, count: usize) {
    for at in (0..count).step_by(LANES) {
        // SAFETY: as the caller promises.
        unsafe { C::store_up_to(X::load_up_to::<V>(from.add(at), count - at), to.add(at), count - at) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_kernel_rotates_and_writes(
            half in 0..40_usize, rest in 0..20_usize, heads in 1..4_usize, kv_heads in 1..3_usize,
            angle in 0.0..6.0_f32, slot in -1..6_i32, scale in prop::option::of(0.5..2.0_f32), has_norm: bool,
            less in 0..3_usize,
        ) {
            let (rotary_size, head_dim) = (2 * half, (2 * half + rest).max(1));
            let value_dim = head_dim.saturating_sub(less).max(1);
            let numbers = |count: usize| -> Vec<f32> { (0..count).map(|at| f32::from((at % 23) as u8) - 11.0).collect() };
            let (query, key) = (numbers(heads * head_dim), numbers(kv_heads * head_dim));
            let (positions, slots) = ([1_i32], [slot]);
            let mut cos_sin = vec![f32::NAN; 2 * rotary_size];
            cos_sin[rotary_size..rotary_size + half].fill(angle.cos());
            cos_sin[rotary_size + half..].fill(angle.sin());
            let scales = [f32::NAN, scale.unwrap_or(1.0)];
            let mut weights = [0.5_f32, 2.0].map(|weight| vec![weight; head_dim]);
            for isa in Isa::available() {
                let (mut rotated, mut new_key, mut value) = (query.clone(), key.clone(), key.clone());
                let mut caches = [vec![f32::NAN; 9 * key.len()], vec![f32::NAN; 9 * key.len()]];
                let rows = |numbers: &mut [f32], stride| Matrix {
                    dtype: DType::Float32,
                    address: numbers.as_mut_ptr().expose_provenance(),
                    stride,
                };
                let [query_weight, key_weight] = weights.each_mut().map(|weight| rows(weight, head_dim));
                let op = RopeAndKvWrite {
                    tokens: 1,
                    heads,
                    head_dim,
                    query: rows(&mut rotated, head_dim),
                    positions: Indices(positions.as_ptr().expose_provenance()),
                    cos_sin: rows(&mut cos_sin, rotary_size),
                    num_positions: 2,
                    norm: has_norm.then_some(HeadNorm { query_weight, key_weight, epsilon: 1e-5, after_rotation: scale.is_none() }),
                    query_scales: scale.map(|_| scales.as_ptr().expose_provenance()),
                    written: Some(Written {
                        key: rows(&mut new_key, head_dim),
                        value: rows(&mut value, value_dim),
                        value_dim,
                        slot_mapping: Indices(slots.as_ptr().expose_provenance()),
                        cache: KvLayer {
                            dtype: DType::Float32,
                            key_address: caches[0].as_mut_ptr().expose_provenance(),
                            value_address: caches[1].as_mut_ptr().expose_provenance(),
                            num_blocks: 3,
                            block_size: 2,
                            block_stride: 3,
                            cell_stride: kv_heads * head_dim,
                            kv_heads,
                            head_dim,
                        },
                    }),
                };
                // SAFETY: every address is of a vector above, as long as the sizes say; the test asks for what the
                // machine has.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("the indices are right");
                for (before, after, weight, scale) in [(&query, &rotated, 0.5, scales[1]), (&key, &new_key, 2.0, 1.0)] {
                    for (before, after) in before.chunks(head_dim).zip(after.chunks(head_dim)) {
                        let squares = before.iter().map(|number| number * number).sum::<f32>();
                        let normed = weight / (squares / f32::from(head_dim as u8) + 1e-5).sqrt();
                        let factor = if has_norm { normed } else { 1.0 };
                        let expected = |at: usize| {
                            let turned = match at {
                                _ if at < half => before[at] * angle.cos() - before[at + half] * angle.sin(),
                                _ if at < rotary_size => before[at] * angle.cos() + before[at - half] * angle.sin(),
                                _ => before[at],
                            };
                            turned * factor * scale
                        };
                        for (at, &after) in after.iter().enumerate() {
                            prop_assert!((after - expected(at)).abs() < 3e-5, "{isa:?}: {at}");
                        }
                    }
                }
                for (cache, (written, size)) in caches.iter().zip([(&new_key, head_dim), (&key, value_dim)]) {
                    for (index, there) in cache.chunks(key.len()).enumerate() {
                        let untouched = there.iter().all(|number| number.is_nan());
                        let (firsts, rests): (Vec<_>, Vec<_>) = there.chunks(head_dim).map(|head| head.split_at(size)).unzip();
                        let is_whole = firsts.concat() == written[..kv_heads * size] && rests.concat().iter().all(|number| number.is_nan());
                        let (block, offset) = (index / 3, index % 3);
                        let is_written = offset < 2 && slot == (2 * block + offset) as i32;
                        let right = if is_written { is_whole } else { untouched };
                        prop_assert!(right, "{isa:?}, cell {index}");
                    }
                }
            }
        }
    }
}
