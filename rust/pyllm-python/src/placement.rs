//! `Placement` for Python: arguments and errors are converted, nothing is decided.

use std::sync::{Mutex, PoisonError};

use pyllm_scheduler::{Error, NewRequest};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::buffers::ids_from_bytes;
use crate::errors::value_error;
use crate::keywords;
use crate::numbers::Number;

#[pyclass(frozen, module = "pyllm._rust")]
pub(crate) struct Placement(Mutex<pyllm_scheduler::Placement>);

#[pymethods]
impl Placement {
    #[new]
    #[pyo3(signature = (*, block_size, prefix_hash = "blake3", prefix_hash_seed = "", cache_namespace = ""))]
    fn new(
        py: Python<'_>,
        block_size: Number<u32>,
        prefix_hash: &str,
        prefix_hash_seed: &str,
        cache_namespace: &str,
    ) -> PyResult<Self> {
        let (prefix_hash, seed) = keywords::prefix_hash(py, prefix_hash, prefix_hash_seed)?;
        let block_size = block_size.named("block_size")?;
        let placement = pyllm_scheduler::Placement::new(block_size, prefix_hash, &seed, cache_namespace);
        placement.map(|placement| Self(Mutex::new(placement))).map_err(|error| value_error(&error))
    }

    fn add_core(&self, core: Number<u32>) -> PyResult<()> {
        let core = core.named("core")?;
        self.call(|placement| placement.add_core(core))
    }

    fn remove_core(&self, core: Number<u32>) -> PyResult<()> {
        let core = core.named("core")?;
        self.call(|placement| placement.remove_core(core))
    }

    fn update_core(&self, core: Number<u32>, last_request: Number<i64>, changes: &[u8], load: &[u8]) -> PyResult<()> {
        let core = core.named("core")?;
        let last_request = u64::try_from(last_request.named("last_request")?).ok();
        self.call(|placement| placement.update_core(core, last_request, changes, load))
    }

    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    #[pyo3(signature = (
        request, prompt, max_tokens, cores, *, num_samples = Number(Ok(1)), tenant = "", cache_salt = "", adapter = "", session = ""
    ), text_signature = "(self, request, prompt, max_tokens, cores, *, num_samples=1, tenant='', cache_salt='', adapter='', session='')")]
    fn place(
        &self,
        request: Number<u64>,
        prompt: &[u8],
        max_tokens: Number<u32>,
        cores: Vec<Number<u32>>,
        num_samples: Number<u32>,
        tenant: &str,
        cache_salt: &str,
        adapter: &str,
        session: &str,
    ) -> PyResult<(u32, u32)> {
        let cores = cores.into_iter().map(|core| core.named("a core")).collect::<PyResult<Vec<_>>>()?;
        let request = NewRequest {
            id: request.named("request")?,
            prompt: ids_from_bytes("prompt", prompt)?,
            max_tokens: max_tokens.named("max_tokens")?,
            num_samples: num_samples.named("num_samples")?,
            tenant: tenant.to_owned(),
            cache_salt: cache_salt.to_owned(),
            adapter: adapter.to_owned(),
            session: session.to_owned(),
        };
        let placed = self.call(|placement| placement.place(request, &cores))?;
        Ok((placed.core, placed.num_cached_tokens))
    }

    fn ended(&self, request: Number<i64>) -> PyResult<()> {
        // A request id out of range was never placed.
        let Ok(Ok(request)) = request.0.map(u64::try_from) else { return Ok(()) };
        self.call(|placement| {
            placement.ended(request);
            Ok(())
        })
    }

    fn change_weights(&self, version: &str) -> PyResult<()> {
        self.call(|placement| {
            placement.change_weights(version);
            Ok(())
        })
    }

    fn start_recording(&self) -> PyResult<()> {
        self.call(pyllm_scheduler::Placement::start_recording)
    }

    fn take_recording<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let recording = self.call(|placement| Ok(placement.take_recording()))?;
        Ok(PyBytes::new(py, &recording))
    }

    #[staticmethod]
    fn replay<'py>(py: Python<'py>, recording: &[u8]) -> PyResult<Bound<'py, PyDict>> {
        let replay = py.detach(|| pyllm_scheduler::Placement::replay(recording));
        let replay = replay.map_err(|error| value_error(&error))?;
        let report = [("num_entries", replay.num_entries), ("num_choices", replay.num_choices)].into_py_dict(py)?;
        report.set_item("hash", format!("{:016x}", replay.hash))?;
        report.set_item("is_truncated", replay.is_truncated)?;
        Ok(report)
    }
}

impl Placement {
    /// Calls are too short to release the interpreter lock.
    fn call<T>(&self, work: impl FnOnce(&mut pyllm_scheduler::Placement) -> Result<T, Error>) -> PyResult<T> {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)).map_err(|error| value_error(&error))
    }
}
