//! The shim of the times of ops. `_cpu.pyi` documents it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::op_times;
use crate::ops::{end_timing, time_in};

#[pyclass(frozen, module = "pyllm_kernels._cpu")]
pub(crate) struct OpTimes(Arc<Mutex<op_times::OpTimes>>);

#[pymethods]
impl OpTimes {
    #[new]
    fn new(max_runs: usize) -> Self {
        Self(Arc::new(Mutex::new(op_times::OpTimes::new(max_runs))))
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
    fn lock(&self) -> MutexGuard<'_, op_times::OpTimes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
