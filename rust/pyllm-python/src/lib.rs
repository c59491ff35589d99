//! `pyllm._rust`: the scheduler for Python. It converts arguments and errors and decides nothing; the stub
//! `pyllm/_rust.pyi` is its documentation.

mod buffers;

use std::sync::{Mutex, PoisonError};

use pyllm_scheduler::{ClientId, Config, Error, Output, Request, RequestId, StepId};
use pyo3::create_exception;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use buffers::{Plan, bytes, ids_from_buffer, ids_from_bytes};

create_exception!(pyllm._rust, SchedulerError, PyValueError, "A call that the scheduler refused.");
create_exception!(pyllm._rust, NeverFitsError, SchedulerError, "A request too large to ever run.");

type Columns<'py> = [Bound<'py, PyBytes>; 7];

#[pyclass(frozen, module = "pyllm._rust")]
struct Scheduler(Mutex<pyllm_scheduler::Scheduler>);

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (
        *, block_size, num_blocks, max_num_seqs, max_num_batched_tokens, max_model_len, vocab_size,
        enable_prefix_caching
    ))]
    fn new(
        block_size: Integer<u32>,
        num_blocks: Integer<u32>,
        max_num_seqs: Integer<u32>,
        max_num_batched_tokens: Integer<u32>,
        max_model_len: Integer<u32>,
        vocab_size: Integer<u32>,
        enable_prefix_caching: bool,
    ) -> PyResult<Self> {
        let config = Config {
            block_size: block_size.named("block_size")?,
            num_blocks: num_blocks.named("num_blocks")?,
            max_num_seqs: max_num_seqs.named("max_num_seqs")?,
            max_num_batched_tokens: max_num_batched_tokens.named("max_num_batched_tokens")?,
            max_model_len: max_model_len.named("max_model_len")?,
            vocab_size: vocab_size.named("vocab_size")?,
            enable_prefix_caching,
        };
        let scheduler = pyllm_scheduler::Scheduler::new(config).map_err(|error| python_error(&error))?;
        Ok(Self(Mutex::new(scheduler)))
    }

    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    #[pyo3(signature = (
        client, request, prompt, *, seed, max_tokens, n = Integer(Ok(1)), stop_token_ids = b"".as_slice(),
        sampling = b"".as_slice(), outputs = vec![], arrival = 0.0, priority = Integer(Ok(0)), tenant = "", cache_salt = "", adapter = ""
    ), text_signature = "(self, client, request, prompt, *, seed, max_tokens, n=1, stop_token_ids=b'', sampling=b'', \
        outputs=(), arrival=0.0, priority=0, tenant='', cache_salt='', adapter='')")]
    fn add(
        &self,
        py: Python<'_>,
        client: Integer<u32>,
        request: Integer<u64>,
        prompt: &[u8],
        seed: Integer<u64>,
        max_tokens: Integer<u32>,
        n: Integer<u32>,
        stop_token_ids: &[u8],
        sampling: &[u8],
        outputs: Vec<(PyBackedBytes, bool)>,
        arrival: f64,
        priority: Integer<i32>,
        tenant: &str,
        cache_salt: &str,
        adapter: &str,
    ) -> PyResult<()> {
        let outputs = outputs
            .into_iter()
            .map(|(tokens, finished)| Ok(Output { tokens: ids_from_bytes("outputs", &tokens)?, finished }));
        let (client, id) = name(client, request)?;
        let request = Request {
            client,
            id,
            prompt: ids_from_bytes("prompt", prompt)?,
            n: n.named("n")?,
            seed: seed.named("seed")?,
            max_tokens: max_tokens.named("max_tokens")?,
            stop_token_ids: ids_from_bytes("stop_token_ids", stop_token_ids)?,
            sampling: sampling.to_vec(),
            outputs: outputs.collect::<PyResult<_>>()?,
            arrival,
            priority: priority.named("priority")?,
            tenant: tenant.to_owned(),
            cache_salt: cache_salt.to_owned(),
            adapter: adapter.to_owned(),
        };
        self.call(py, |scheduler| scheduler.add(request))
    }

    #[pyo3(signature = (client, request, sample = Integer(Ok(-1))), text_signature = "(self, client, request, sample=-1)")]
    fn abort(
        &self,
        py: Python<'_>,
        client: Integer<u32>,
        request: Integer<u64>,
        sample: Integer<i32>,
    ) -> PyResult<bool> {
        // What is not in range is not there.
        let (Integer(Ok(client)), Integer(Ok(request)), Integer(Ok(sample))) = (client, request, sample) else {
            return Ok(false);
        };
        let sample = match u32::try_from(sample) {
            Ok(sample) => Some(sample),
            Err(_) if sample == -1 => None,
            Err(_) => return Ok(false),
        };
        let (client, request) = (ClientId(client), RequestId(request));
        self.call(py, |scheduler| Ok(scheduler.abort(client, request, sample)))
    }

    fn hold(&self, py: Python<'_>, client: Integer<u32>, request: Integer<u64>, reason: &str) -> PyResult<()> {
        let (client, request) = name(client, request)?;
        self.call(py, |scheduler| scheduler.hold(client, request, reason))
    }

    fn release(&self, py: Python<'_>, client: Integer<u32>, request: Integer<u64>) -> PyResult<()> {
        let (client, request) = name(client, request)?;
        self.call(py, |scheduler| scheduler.release(client, request))
    }

    fn drop_client(&self, py: Python<'_>, client: Integer<u32>) -> PyResult<()> {
        let client = ClientId(client.named("client")?);
        self.call(py, |scheduler| {
            scheduler.drop_client(client);
            Ok(())
        })
    }

    fn schedule(&self, py: Python<'_>, now: f64) -> PyResult<Option<Plan>> {
        Ok(self.call(py, |scheduler| scheduler.schedule(now))?.map(Plan))
    }

    fn commit(
        &self,
        py: Python<'_>,
        step: Integer<u64>,
        starts: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<u32>> {
        let step = StepId(step.named("step")?);
        let starts = ids_from_buffer("starts", starts)?;
        let tokens = ids_from_buffer("tokens", tokens)?;
        self.call(py, |scheduler| {
            let clients = scheduler.commit(step, &starts, &tokens)?;
            Ok(clients.iter().map(|client| client.0).collect())
        })
    }

    fn pending_clients(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.call(py, |scheduler| Ok(scheduler.pending_clients().iter().map(|client| client.0).collect()))
    }

    fn take_deltas<'py>(&self, py: Python<'py>, client: Integer<u32>) -> PyResult<Option<Columns<'py>>> {
        let client = ClientId(client.named("client")?);
        let mut scheduler = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(deltas) = scheduler.take_deltas(client) else { return Ok(None) };
        Ok(Some([
            bytes(py, &deltas.requests, u64::to_le_bytes)?,
            bytes(py, &deltas.samples, i32::to_le_bytes)?,
            bytes(py, &deltas.offsets, i32::to_le_bytes)?,
            bytes(py, &deltas.token_starts, i32::to_le_bytes)?,
            bytes(py, &deltas.tokens, i32::to_le_bytes)?,
            bytes(py, &deltas.finishes, u8::to_le_bytes)?,
            bytes(py, &deltas.cached_tokens, i32::to_le_bytes)?,
        ]))
    }

    fn lose_device(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |scheduler| {
            scheduler.lose_device();
            Ok(())
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.call(py, |scheduler| Ok(scheduler.stats()))?;
        let named = [
            ("num_requests", stats.num_requests),
            ("num_running", stats.num_running),
            ("num_waiting", stats.num_waiting),
            ("num_held", stats.num_held),
            ("num_blocks", stats.num_blocks),
            ("num_free_blocks", stats.num_free_blocks),
            ("num_used_blocks", stats.num_used_blocks),
            ("num_cached_blocks", stats.num_cached_blocks),
            ("num_preemptions", stats.num_preemptions),
            ("prefix_queries", stats.prefix_queries),
            ("prefix_hits", stats.prefix_hits),
            ("num_computed_tokens", stats.num_computed_tokens),
            ("num_steps", stats.num_steps),
        ];
        named.into_py_dict(py)
    }
}

impl Scheduler {
    /// Runs `work` without the interpreter lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut pyllm_scheduler::Scheduler) -> Result<T, Error>,
    ) -> PyResult<T> {
        let result = py.detach(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)));
        result.map_err(|error| python_error(&error))
    }
}

fn name(client: Integer<u32>, request: Integer<u64>) -> PyResult<(ClientId, RequestId)> {
    Ok((ClientId(client.named("client")?), RequestId(request.named("request")?)))
}

/// The one place where the crate's errors become exceptions.
fn python_error(error: &Error) -> PyErr {
    match error {
        Error::PromptTooLong { .. } | Error::NeverFits { .. } => NeverFitsError::new_err(error.to_string()),
        _ => SchedulerError::new_err(error.to_string()),
    }
}

/// An integer argument, or what was given in its place if that is out of range: a refused call like any other.
struct Integer<T>(Result<T, String>);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Integer<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match value.extract() {
            Ok(integer) => Ok(Self(Ok(integer))),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(Self(Err(value.to_string()))),
            Err(error) => Err(error),
        }
    }
}

impl<T> Integer<T> {
    fn named(self, name: &str) -> PyResult<T> {
        let kind = std::any::type_name::<T>();
        self.0.map_err(|value| SchedulerError::new_err(format!("{name} is {value}; give a number that fits {kind}")))
    }
}

#[pymodule]
mod _rust {
    #[pymodule_export]
    use super::{NeverFitsError, Plan, Scheduler, SchedulerError};
    use pyo3::prelude::*;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let sections = pyllm_scheduler::SECTIONS.map(|(name, element)| (name, element.to_string()));
        module.add("SECTIONS", pyo3::types::PyTuple::new(module.py(), sections)?)
    }
}
