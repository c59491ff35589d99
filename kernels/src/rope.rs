//! Rotary position embedding of query and key (arXiv 2104.09864), and the write of key and value into the paged cache.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use crate::dtype::DType;
use crate::isa::Isa;
use crate::kv_layer::KvLayer;
use crate::op::{Extent, Indices, Matrix, Op, OutOfRange, check_range, run_rows};
use crate::threads::Pool;
use crate::vector::{Bfloat16, Kernel, LANES, Storage, Vector};

/// Rotates in place. The halves of a head form its pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeAndKvWrite {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// A row is a token: its heads, one after the other. All three have the same dtype.
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) positions: Indices,
    /// float32; a row is a position: the cosines of half a head, then the sines.
    pub(crate) cos_sin: Matrix,
    pub(crate) num_positions: usize,
    /// A cell of the cache for each token; none where it is negative.
    pub(crate) slot_mapping: Indices,
    pub(crate) cache: KvLayer,
}

impl Op for RopeAndKvWrite {
    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        let (positions, cells) =
            unsafe { (self.positions.first(extent.tokens), self.slot_mapping.first(extent.tokens)) };
        check_range("position", positions, 0..self.num_positions as i64)?;
        check_range("entry of the slot mapping", cells, i64::from(i32::MIN)..self.cache.num_cells() as i64)?;
        // SAFETY: as the caller promises; positions and cells were checked.
        unsafe {
            match (self.query.dtype, self.cache.dtype) {
                (DType::Float32, DType::Float32) => self.run_as::<f32, f32>(positions, cells, isa, pool),
                (DType::Float32, DType::Bfloat16) => self.run_as::<f32, Bfloat16>(positions, cells, isa, pool),
                (DType::Bfloat16, DType::Float32) => self.run_as::<Bfloat16, f32>(positions, cells, isa, pool),
                (DType::Bfloat16, DType::Bfloat16) => {
                    self.run_as::<Bfloat16, Bfloat16>(positions, cells, isa, pool);
                }
            }
        }
        Ok(())
    }
}

impl RopeAndKvWrite {
    /// # Safety
    ///
    /// As for `Op::run`; the heads are made of X and the cache of C, and it and the table have what the indices name.
    unsafe fn run_as<X: Storage, C: Storage>(&self, positions: &[i32], cells: &[i32], isa: Isa, pool: &mut Pool) {
        let kernel = Token::<X, C> { op: self, positions, cells, elements: PhantomData };
        let width = (self.heads + 2 * self.cache.kv_heads) * self.cache.head_dim;
        // SAFETY: as the caller promises.
        unsafe { run_rows(&kernel, positions.len(), width, isa, pool, &|_| {}) }
    }
}

struct Token<'a, X, C> {
    op: &'a RopeAndKvWrite,
    positions: &'a [i32],
    cells: &'a [i32],
    elements: PhantomData<(X, C)>,
}

impl<X: Storage, C: Storage> Kernel for Token<'_, X, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, token: usize) {
        let RopeAndKvWrite { heads, query, key, value, cos_sin, cache, .. } = *self.op;
        // SAFETY: as the caller promises.
        unsafe {
            let cos_sin = cos_sin.row::<f32>(self.positions[token] as usize);
            rotate::<V, X>(query.row(token), heads, cache.head_dim, cos_sin);
            rotate::<V, X>(key.row(token), cache.kv_heads, cache.head_dim, cos_sin);
            if let Ok(cell) = usize::try_from(self.cells[token]) {
                copy::<V, X, C>(key.row(token), cache.keys::<C>(cell), cache.width());
                copy::<V, X, C>(value.row(token), cache.values::<C>(cell), cache.width());
            }
        }
    }
}

/// # Safety
///
/// As for `Kernel::run`; the heads and the table's row are there.
#[inline(always)]
unsafe fn rotate<V: Vector, X: Storage>(heads: *mut X, num_heads: usize, head_dim: usize, cos_sin: *const f32) {
    let half = head_dim / 2;
    // SAFETY: as the caller promises.
    unsafe {
        for at in (0..half).step_by(LANES) {
            let left = half - at;
            let cos: V = f32::load_up_to(cos_sin.add(at), left);
            let sin: V = f32::load_up_to(cos_sin.add(half + at), left);
            let minus_sin = V::splat(0.0).sub(sin);
            for head in 0..num_heads {
                let first = heads.add(head * head_dim + at);
                let second = first.add(half);
                let (a, b): (V, V) = (X::load_up_to(first, left), X::load_up_to(second, left));
                X::store_up_to(a.mul_add(cos, b.mul(minus_sin)), first, left);
                X::store_up_to(b.mul_add(cos, a.mul(sin)), second, left);
            }
        }
    }
}

/// # Safety
///
/// As for `Kernel::run`; so many numbers are there.
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
            half in 1..40_usize, heads in 1..4_usize, kv_heads in 1..3_usize, angle in 0.0..6.0_f32, cell in -1..6_i32,
        ) {
            let head_dim = 2 * half;
            let numbers = |count: usize| -> Vec<f32> { (0..count).map(|at| f32::from((at % 23) as u8) - 11.0).collect() };
            let (query, key) = (numbers(heads * head_dim), numbers(kv_heads * head_dim));
            let (positions, cells) = ([1_i32], [cell]);
            let mut cos_sin = vec![f32::NAN; 2 * head_dim];
            cos_sin[head_dim..head_dim + half].fill(angle.cos());
            cos_sin[head_dim + half..].fill(angle.sin());
            for isa in Isa::available() {
                let (mut rotated, mut new_key, mut value) = (query.clone(), key.clone(), key.clone());
                let mut caches = [vec![f32::NAN; 6 * key.len()], vec![f32::NAN; 6 * key.len()]];
                let rows = |numbers: &mut [f32]| Matrix {
                    dtype: DType::Float32,
                    address: numbers.as_mut_ptr().expose_provenance(),
                    stride: head_dim,
                };
                let op = RopeAndKvWrite {
                    tokens: 1,
                    heads,
                    query: rows(&mut rotated),
                    key: rows(&mut new_key),
                    value: rows(&mut value),
                    positions: Indices(positions.as_ptr().expose_provenance()),
                    cos_sin: rows(&mut cos_sin),
                    num_positions: 2,
                    slot_mapping: Indices(cells.as_ptr().expose_provenance()),
                    cache: KvLayer {
                        dtype: DType::Float32,
                        key_address: caches[0].as_mut_ptr().expose_provenance(),
                        value_address: caches[1].as_mut_ptr().expose_provenance(),
                        num_blocks: 3,
                        block_size: 2,
                        kv_heads,
                        head_dim,
                    },
                };
                // SAFETY: every address is of a vector above, as long as the sizes say; the test asks for what the
                // machine has.
                unsafe { op.run(op.capacity(), isa, &mut Pool::new(1)) }.expect("the indices are right");
                for (before, after) in [(&query, &rotated), (&key, &new_key)] {
                    for (before, after) in before.chunks(head_dim).zip(after.chunks(head_dim)) {
                        for pair in 0..half {
                            let (a, b) = (before[pair], before[pair + half]);
                            let expected = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
                            prop_assert!((after[pair] - expected[0]).abs() < 1e-5, "{isa:?}");
                            prop_assert!((after[pair + half] - expected[1]).abs() < 1e-5, "{isa:?}");
                        }
                    }
                }
                for (cache, written) in caches.iter().zip([&new_key, &key]) {
                    for (index, there) in cache.chunks(key.len()).enumerate() {
                        let untouched = there.iter().all(|number| number.is_nan());
                        let right = if cell == index as i32 { there == written } else { untouched };
                        prop_assert!(right, "{isa:?}, cell {index}");
                    }
                }
            }
        }
    }
}
