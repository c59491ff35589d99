//! The addresses of one layer's keys and values. Knows no sequence: a cell belongs to one token.

use crate::dtype::DType;

/// Two tensors `[num_blocks, block_size, kv_heads, head_dim]`, contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvLayer {
    pub(crate) dtype: DType,
    pub(crate) key_address: usize,
    pub(crate) value_address: usize,
    pub(crate) num_blocks: usize,
    pub(crate) block_size: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl KvLayer {
    pub(crate) fn num_cells(&self) -> usize {
        self.num_blocks * self.block_size
    }

    /// Elements of a cell: one token's heads.
    pub(crate) fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Address of a cell's keys.
    pub(crate) fn keys<T>(&self, cell: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.key_address).wrapping_add(cell * self.width())
    }

    /// Address of a cell's values.
    pub(crate) fn values<T>(&self, cell: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.value_address).wrapping_add(cell * self.width())
    }
}
