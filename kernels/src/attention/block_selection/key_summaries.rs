//! Summaries of the keys of a block: their mean, or the bounds of each dimension. Knows no query.
#![expect(clippy::inline_always, reason = "see `Vector`")]

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance_mut;

use crate::kv_layer::KvLayer;
use crate::vector::{Kernel, LANES, Storage, Vector};

/// The summaries of one layer: `[num_blocks, kv_heads, parts, head_dim]` of the cache's dtype, and whether each exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySummaries {
    pub(crate) kind: SummaryKind,
    pub(crate) address: usize,
    /// Address of a byte per block, 0 or 1: whether it has a summary.
    pub(crate) known: usize,
}

/// The kind of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SummaryKind {
    Mean,
    /// The maximum of each dimension, then the minimum (arXiv 2406.10774).
    Bounds,
}

impl SummaryKind {
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::Mean => 1,
            Self::Bounds => 2,
        }
    }
}

impl KeySummaries {
    /// Address of the parts of a block's KV head.
    pub(super) fn of<C>(&self, block: usize, kv_head: usize, cache: &KvLayer) -> *mut C {
        let vectors = (block * cache.kv_heads + kv_head) * self.kind.parts();
        with_exposed_provenance_mut::<C>(self.address).wrapping_add(vectors * cache.head_dim)
    }

    /// The blocks without a summary, each once; marks them as having one.
    ///
    /// # Safety
    ///
    /// There is a mark for each block, and no other thread accesses them meanwhile.
    pub(super) unsafe fn take_missing<'a>(&self, blocks: impl Iterator<Item = &'a i32>) -> Vec<i32> {
        let known = with_exposed_provenance_mut::<u8>(self.known);
        let mut missing = Vec::new();
        for &block in blocks {
            // SAFETY: as the caller promises.
            unsafe {
                let mark = known.add(block as usize);
                if *mark == 0 {
                    *mark = 1;
                    missing.push(block);
                }
            }
        }
        missing
    }
}

/// The summaries of blocks: a part of the kernel is one of `blocks`.
pub(super) struct Summarise<'a, C> {
    summaries: &'a KeySummaries,
    cache: &'a KvLayer,
    blocks: &'a [i32],
    element: PhantomData<C>,
}

impl<'a, C> Summarise<'a, C> {
    pub(super) fn new(summaries: &'a KeySummaries, cache: &'a KvLayer, blocks: &'a [i32]) -> Self {
        Self { summaries, cache, blocks, element: PhantomData }
    }
}

impl<C: Storage> Kernel for Summarise<'_, C> {
    #[expect(clippy::cast_precision_loss, reason = "a block has fewer tokens than float32 has whole numbers")]
    #[inline(always)]
    unsafe fn run<V: Vector>(&self, part: usize) {
        let (block, cache) = (self.blocks[part] as usize, self.cache);
        let KvLayer { block_size, block_stride, head_dim, .. } = *cache;
        for head in 0..cache.kv_heads {
            let keys = cache.keys::<C>(block * block_stride).wrapping_add(head * head_dim);
            let to = self.summaries.of::<C>(block, head, cache);
            for dimension in (0..head_dim).step_by(LANES) {
                let left = head_dim - dimension;
                // SAFETY: as the caller promises.
                unsafe {
                    let keys = keys.add(dimension);
                    let first = C::load_up_to::<V>(keys, left);
                    match self.summaries.kind {
                        SummaryKind::Mean => {
                            let mut sum = first;
                            for cell in 1..block_size {
                                sum = sum.add(C::load_up_to(keys.add(cell * cache.cell_stride), left));
                            }
                            let mean = sum.mul(V::splat(1.0 / block_size as f32));
                            C::store_up_to(mean, to.add(dimension), left);
                        }
                        SummaryKind::Bounds => {
                            let (mut greatest, mut least) = (first, first);
                            for cell in 1..block_size {
                                let key = C::load_up_to::<V>(keys.add(cell * cache.cell_stride), left);
                                (greatest, least) = (greatest.max(key), least.min(key));
                            }
                            C::store_up_to(greatest, to.add(dimension), left);
                            C::store_up_to(least, to.add(head_dim + dimension), left);
                        }
                    }
                }
            }
        }
    }
}
