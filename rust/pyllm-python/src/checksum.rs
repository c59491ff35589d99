//! The checksum of KV blocks outside the engine's memory: XXH3 of 128 bits, at the speed of memory.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use xxhash_rust::xxh3::xxh3_128;

#[pyfunction]
pub(crate) fn xxh3<'py>(py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let buffer = PyBuffer::<u8>::get(data)?;
    let cells = buffer.as_slice(py).ok_or_else(|| PyValueError::new_err("the bytes are not contiguous"))?;
    // SAFETY: the same memory, which the buffer holds; the stub requires that nothing writes to it during the call.
    let bytes = unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) };
    let digest = py.detach(|| xxh3_128(bytes));
    Ok(PyBytes::new(py, &digest.to_be_bytes()))
}
