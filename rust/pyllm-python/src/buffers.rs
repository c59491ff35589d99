//! Bytes across the border: plans out through the buffer protocol, token ids in, columns out. Knows no scheduling.

use std::os::raw::c_int;

use pyllm_scheduler::{Embeddings, HostBlock, HostBlockId, LogprobEntries, Logprobs, SWAP_NAME_SIZE};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::SchedulerError;

#[pyclass(frozen, module = "pyllm._rust")]
pub(crate) struct Plan(pub(crate) pyllm_scheduler::Plan);

#[pymethods]
impl Plan {
    #[getter]
    fn step(&self) -> u64 {
        self.0.step.0
    }

    #[getter]
    fn counts(&self) -> Vec<u32> {
        self.0.counts.to_vec()
    }

    #[getter]
    fn num_tokens(&self) -> u32 {
        self.0.num_tokens()
    }

    #[getter]
    fn num_rows(&self) -> u32 {
        self.0.num_rows()
    }

    /// # Safety
    ///
    /// `view` is null or a buffer that may be filled, as Python guarantees.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let buffer = &slf.get().0.buffer;
        let data = buffer.as_ptr().cast_mut().cast();
        // SAFETY: the view keeps the plan alive, and a frozen plan's buffer neither moves nor changes. It is exported
        // read-only, so nothing writes through the pointer.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, buffer.len() as isize, 1, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Token ids from packed little-endian int32.
pub(crate) fn ids_from_bytes(name: &str, packed: &[u8]) -> PyResult<Vec<i32>> {
    Ok(words(name, "int32", packed)?.map(i32::from_le_bytes).collect())
}

/// Packed little-endian float32.
fn floats_from_bytes(name: &str, packed: &[u8]) -> PyResult<Vec<f32>> {
    Ok(words(name, "float32", packed)?.map(f32::from_le_bytes).collect())
}

fn words<'a>(name: &str, kind: &str, packed: &'a [u8]) -> PyResult<impl Iterator<Item = [u8; 4]> + use<'a>> {
    if packed.len() % 4 != 0 {
        let length = packed.len();
        return Err(SchedulerError::new_err(format!("{name} has {length} bytes; {kind} take a multiple of 4")));
    }
    Ok(packed.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]))
}

/// Token ids from any buffer, of bytes or of int32.
pub(crate) fn ids_from_buffer(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    let py = object.py();
    let buffer = PyUntypedBuffer::get(object)?;
    if let Ok(ids) = buffer.as_typed::<i32>() {
        return ids.to_vec(py);
    }
    if let Ok(packed) = buffer.as_typed::<u8>() {
        return ids_from_bytes(name, &packed.to_vec(py)?);
    }
    let format = buffer.format().to_string_lossy();
    Err(SchedulerError::new_err(format!("{name} has elements of format {format}; give int32 or bytes")))
}

/// Host blocks, each as its number (uint32, little endian) and a name as in a plan's `swap_names`.
pub(crate) fn host_blocks_from_bytes(packed: &[u8]) -> PyResult<Vec<HostBlock>> {
    const SIZE: usize = 4 + SWAP_NAME_SIZE;
    if packed.len() % SIZE != 0 {
        let text = format!("blocks has {} bytes; host blocks take {SIZE} each", packed.len());
        return Err(SchedulerError::new_err(text));
    }
    let blocks = packed.chunks_exact(SIZE).map(|record| {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        let hash = std::array::from_fn(|byte| record[4 + byte]);
        HostBlock { block: HostBlockId(word(0)), hash, group: word(36), index: word(40) }
    });
    Ok(blocks.collect())
}

/// The columns of `messages.Logprobs`.
pub(crate) fn logprobs_from_bytes(
    [prompt_starts, prompt_tokens, starts, ids, values, ranks]: &[PyBackedBytes; 6],
) -> PyResult<Logprobs> {
    Ok(Logprobs {
        prompt_starts: ids_from_bytes("prompt_starts", prompt_starts)?,
        prompt_tokens: ids_from_bytes("prompt_tokens", prompt_tokens)?,
        entries: LogprobEntries {
            starts: ids_from_bytes("logprob_starts", starts)?,
            ids: ids_from_bytes("logprob_ids", ids)?,
            values: floats_from_bytes("logprob_values", values)?,
            ranks: ids_from_bytes("ranks", ranks)?,
        },
    })
}

/// The columns of `messages.Embeddings`.
pub(crate) fn embeddings_from_bytes([starts, values]: &[PyBackedBytes; 2]) -> PyResult<Embeddings> {
    Ok(Embeddings {
        starts: ids_from_bytes("embedding_starts", starts)?,
        values: floats_from_bytes("embeddings", values)?,
    })
}

/// A column as Python bytes.
pub(crate) fn bytes<'py, T: Copy, const SIZE: usize>(
    py: Python<'py>,
    column: &[T],
    to_le_bytes: impl Fn(T) -> [u8; SIZE],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, column.len() * SIZE, |packed| {
        for (place, &value) in packed.chunks_exact_mut(SIZE).zip(column) {
            place.copy_from_slice(&to_le_bytes(value));
        }
        Ok(())
    })
}
