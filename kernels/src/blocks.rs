//! Copies of whole cache blocks. Knows no request.

use std::ptr::copy;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::execution::execute;
use crate::isa::Isa;
use crate::kv_layer::KvLayer;
use crate::op::{Extent, Indices, Op, OutOfRange, check_range};
use crate::threads::Pool;

/// Copies of (source, destination) in both caches, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyBlocks {
    pub(crate) cache: KvLayer,
    /// Two numbers each; a graph counts copies as tokens.
    pub(crate) copies: Indices,
    pub(crate) num_copies: usize,
}

#[pyfunction]
pub(crate) fn copy_blocks(py: Python<'_>, key_cache: Array, value_cache: Array, copies: Array) -> PyResult<()> {
    let [.., head_dim] = key_cache.dimensions::<4>("key_cache")?;
    let shape @ [num_copies, _] = [copies.len(), 2];
    let cache = KvLayer::of(&key_cache, &value_cache, head_dim)?;
    if cache.cell_stride != cache.width() {
        return Err(PyValueError::new_err("tokens of a cache are apart: give all of their numbers"));
    }
    let op = CopyBlocks { cache, copies: copies.indices("copies", &shape)?, num_copies };
    // SAFETY: the arrays have the shapes that the op expects, and live as long as it.
    unsafe { execute(py, op, &[&key_cache, &value_cache, &copies]) }
}

impl Op for CopyBlocks {
    fn name(&self) -> &'static str {
        "copy_blocks"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.num_copies, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, _: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        let KvLayer { block_size, block_stride, num_blocks, .. } = self.cache;
        let cell_bytes = self.cache.width() * self.cache.dtype.bytes();
        let (block_bytes, stride) = (block_size * cell_bytes, block_stride * cell_bytes);
        // SAFETY: as the caller promises.
        let copies = unsafe { self.copies.first(2 * extent.tokens) };
        check_range("number of the copies", copies, 0..num_blocks as i64)?;
        let caches = [self.cache.keys::<u8>(0).expose_provenance(), self.cache.values::<u8>(0).expose_provenance()];
        // A copy may read the result of the one before; two caches are independent.
        let count = if caches[0] == caches[1] { 1 } else { 2 };
        pool.run(count, &|which| {
            for pair in copies.chunks_exact(2) {
                let block =
                    |index: i32| std::ptr::with_exposed_provenance_mut::<u8>(caches[which] + index as usize * stride);
                // SAFETY: as the caller promises; both blocks are in the cache.
                unsafe { copy(block(pair[0]), block(pair[1]), block_bytes) };
            }
        });
        Ok(())
    }
}
