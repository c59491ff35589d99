//! The addresses of one layer's keys and values. Knows no sequence: a cell belongs to one token.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;

/// Refuse values that are wider than the room for them in the cache.
pub(crate) fn check_value_dim(value_dim: usize, head_dim: usize) -> PyResult<()> {
    if value_dim == 0 || value_dim > head_dim {
        return Err(PyValueError::new_err(format!(
            "values of {value_dim} numbers in heads of {head_dim}: give at least 1, and at most those"
        )));
    }
    Ok(())
}

/// Two tensors `[num_blocks, block_size, kv_heads, head_dim]`: tokens, and blocks of them, equally far apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvLayer {
    pub(crate) dtype: DType,
    pub(crate) key_address: usize,
    pub(crate) value_address: usize,
    pub(crate) num_blocks: usize,
    pub(crate) block_size: usize,
    /// Cells from the start of a block to that of the next one: `block_size`, or more with other layers in between.
    pub(crate) block_stride: usize,
    /// Elements from a cell to the next one: those of its heads, or more with other numbers of the token behind them.
    pub(crate) cell_stride: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl KvLayer {
    /// The layer of two arrays with heads of `head_dim`.
    pub(crate) fn of(keys: &Array, values: &Array, head_dim: usize) -> PyResult<Self> {
        let [num_blocks, block_size, kv_heads, _] = keys.dimensions("key_cache")?;
        let shape = [num_blocks, block_size, kv_heads, head_dim];
        if shape.contains(&0) || num_blocks.checked_mul(block_size).is_none_or(|cells| cells > i32::MAX as usize) {
            return Err(PyValueError::new_err(format!(
                "a cache of shape {shape:?}: no dimension may be 0, and there may be up to 2,147,483,647 tokens"
            )));
        }
        let dtype = keys.dtype("key_cache")?;
        let (keys, block_stride) = keys.cells("key_cache", dtype, shape)?;
        let (values, of_values) = values.cells("value_cache", dtype, shape)?;
        if (values.stride, of_values) != (keys.stride, block_stride) {
            return Err(PyValueError::new_err("value_cache has other strides than key_cache"));
        }
        Ok(Self {
            dtype,
            key_address: keys.address,
            value_address: values.address,
            num_blocks,
            block_size,
            block_stride,
            cell_stride: keys.stride,
            kv_heads,
            head_dim,
        })
    }

    /// Entries that a slot mapping may have.
    pub(crate) fn num_slots(&self) -> usize {
        self.num_blocks * self.block_size
    }

    /// Elements of a cell: one token's heads.
    pub(crate) fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The cell of an entry of a slot mapping, `block * block_size + offset`.
    pub(crate) fn cell(&self, slot: usize) -> usize {
        slot / self.block_size * self.block_stride + slot % self.block_size
    }

    /// Address of a cell's keys.
    pub(crate) fn keys<T>(&self, cell: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.key_address).wrapping_add(cell * self.cell_stride)
    }

    /// Address of a cell's values.
    pub(crate) fn values<T>(&self, cell: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut::<T>(self.value_address).wrapping_add(cell * self.cell_stride)
    }
}
