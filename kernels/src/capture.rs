//! The Python classes for graphs, for memory lent to their tensors, and for times of ops. `_cpu.pyi` documents all
//! three.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::execution::{Recorder, end_recording, end_timing, graph_error, record_in, time_in, timed};
use crate::isa::Isa;
use crate::memory::arena::Arena;
use crate::op::Extent;
use crate::op::times::{self, Unwatched};
use crate::threads::pool::pool;

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
#[derive(Default)]
pub(crate) struct Graph {
    recorder: Recorder,
}

#[pymethods]
impl Graph {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn begin_capture(&self) -> PyResult<()> {
        record_in(&self.recorder)
    }

    fn end_capture(&self) -> PyResult<()> {
        end_recording(&self.recorder)
    }

    fn lend(&self, num_bytes: usize) -> PyResult<Lease> {
        if num_bytes == 0 || num_bytes > isize::MAX as usize {
            return Err(PyValueError::new_err(format!("a piece of {num_bytes} bytes: ask for at least 1")));
        }
        let Some((index, address)) = self.recorder.arena.lend(num_bytes) else {
            return Err(PyMemoryError::new_err(format!("no memory for an output of {num_bytes} bytes")));
        };
        Ok(Lease { arena: Arc::clone(&self.recorder.arena), index, address, num_bytes })
    }

    fn owns(&self, address: usize) -> bool {
        self.recorder.arena.owns(address)
    }

    /// # Safety
    ///
    /// The ops' pointers are still valid, and nothing else touches their memory during the call.
    unsafe fn replay(&self, py: Python<'_>, num_tokens: usize, num_rows: usize) -> PyResult<()> {
        let extent = Extent { tokens: num_tokens, rows: num_rows };
        let done = py.detach(|| {
            let graph = self.recorder.graph.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: as the caller promises.
            match timed() {
                None => unsafe { graph.replay(extent, Isa::used(), &mut pool(), &mut Unwatched) },
                Some(times) => {
                    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                    unsafe { graph.replay(extent, Isa::used(), &mut pool(), &mut *times) }
                }
            }
        });
        done.map_err(|error| graph_error(&error))
    }

    #[getter]
    fn num_ops(&self) -> usize {
        self.recorder.graph.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    #[getter]
    fn num_bytes(&self) -> usize {
        self.recorder.arena.num_bytes()
    }
}

/// A piece of a graph's memory, returned when Python drops this.
#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct Lease {
    arena: Arc<Arena>,
    index: usize,
    address: usize,
    num_bytes: usize,
}

#[pymethods]
impl Lease {
    /// # Safety
    ///
    /// Python gives a buffer to fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lease = slf.get();
        let memory = std::ptr::with_exposed_provenance_mut(lease.address);
        // SAFETY: the memory lives as long as the lease, of which the view gets a reference; only tensors touch it.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory, lease.num_bytes.cast_signed(), 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.arena.give_back(self.index);
    }
}

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct OpTimes(Arc<Mutex<times::OpTimes>>);

#[pymethods]
impl OpTimes {
    #[new]
    fn new(max_runs: usize) -> Self {
        Self(Arc::new(Mutex::new(times::OpTimes::new(max_runs))))
    }

    fn begin(&self) -> PyResult<()> {
        time_in(&self.0)
    }

    fn end(&self) -> PyResult<()> {
        end_timing(&self.0)
    }

    fn totals(&self) -> Vec<(String, u64, u64)> {
        self.lock().totals().iter().map(|total| (total.name.text(), total.runs, total.duration)).collect()
    }

    fn runs(&self) -> Vec<(usize, u64, u64)> {
        self.lock().runs().iter().map(|run| (run.name, run.start, run.duration)).collect()
    }
}

impl OpTimes {
    fn lock(&self) -> MutexGuard<'_, times::OpTimes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
