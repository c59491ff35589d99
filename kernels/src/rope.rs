//! Rotary position embedding of query and key (arXiv 2104.09864), and the write of key and value into the paged cache.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;

use crate::cache::Cache;
use crate::isa::Isa;
use crate::linear::Element;
use crate::op::{Extent, Indices, Op, OutOfRange, Rows, check_range, run_rows};
use crate::threads::Pool;
use crate::vector::{Bfloat16, Kernel, LANES, Storage, Vector};

/// Rotates in place. The halves of a head form its pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeAndKvWrite {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// A row is a token: its heads, one after the other. All three are made of one element.
    pub(crate) query: Rows,
    pub(crate) key: Rows,
    pub(crate) value: Rows,
    pub(crate) positions: Indices,
    /// float32; a row is a position: the cosines of half a head, then the sines.
    pub(crate) cos_sin: Rows,
    pub(crate) num_positions: usize,
    /// A cell of the cache for each token; none where it is negative.
    pub(crate) slot_mapping: Indices,
    pub(crate) cache: Cache,
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
            match (self.query.element, self.cache.element) {
                (Element::Float32, Element::Float32) => self.run_as::<f32, f32>(positions, cells, isa, pool),
                (Element::Float32, Element::Bfloat16) => self.run_as::<f32, Bfloat16>(positions, cells, isa, pool),
                (Element::Bfloat16, Element::Float32) => self.run_as::<Bfloat16, f32>(positions, cells, isa, pool),
                (Element::Bfloat16, Element::Bfloat16) => {
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
        unsafe { run_rows(&kernel, positions.len(), width, isa, pool) }
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
