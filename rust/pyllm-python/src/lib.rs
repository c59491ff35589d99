//! `pyllm._rust`: the scheduler for Python, and the checksum of stored KV blocks. It converts arguments and errors and
//! decides nothing; the stub `pyllm/_rust.pyi` is its documentation.

mod buffers;
mod checksum;
mod errors;
mod keywords;
mod step_trace;
mod numbers;
mod placement;
mod reports;
mod request_hasher;

use std::sync::{Mutex, PoisonError};

use pyllm_scheduler::{BatchFormat, ClientId, Config, Error, LoadId, Output, Request, RequestId, SaveId, StepId};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use buffers::{
    Plan, bytes, embeddings_from_bytes, host_blocks_from_bytes, ids_from_buffer, ids_from_bytes, logprobs_from_bytes,
};
use errors::{NeverFitsError, SchedulerError, python_error};
use numbers::Number;
use placement::Placement;
use request_hasher::RequestHasher;

#[pyclass(frozen, module = "pyllm._rust")]
struct Scheduler(Mutex<pyllm_scheduler::Scheduler>);

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(py: Python<'_>, settings: Option<Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = keywords::read::<Config>(&settings.unwrap_or_else(|| PyDict::new(py)))?;
        let scheduler = pyllm_scheduler::Scheduler::new(config).map_err(|error| python_error(&error))?;
        Ok(Self(Mutex::new(scheduler)))
    }

    #[pyo3(signature = (**settings))]
    fn reconfigure(&self, py: Python<'_>, settings: Option<Bound<'_, PyDict>>) -> PyResult<()> {
        let config = self.call(py, |scheduler| Ok(scheduler.config().clone()))?;
        let config = keywords::changed(&config, &settings.unwrap_or_else(|| PyDict::new(py)))?;
        self.call(py, |scheduler| scheduler.reconfigure(config))
    }

    fn longest_sequence(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.call(py, |scheduler| Ok(scheduler.longest_sequence()))
    }

    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    #[pyo3(signature = (
        client, request, prompt, *, seed, max_tokens, stop_token_ids = b"".as_slice(), sampling = b"".as_slice(),
        outputs = vec![], **fields
    ), text_signature = "(self, client, request, prompt, *, seed, max_tokens, stop_token_ids=b'', sampling=b'', outputs=(), **fields)")]
    fn add(
        &self,
        py: Python<'_>,
        client: Number<u32>,
        request: Number<u64>,
        prompt: &[u8],
        seed: Number<u64>,
        max_tokens: Number<u32>,
        stop_token_ids: &[u8],
        sampling: &[u8],
        outputs: Vec<(PyBackedBytes, bool)>,
        fields: Option<Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let mut added = keywords::read::<Request>(&fields.unwrap_or_else(|| PyDict::new(py)))?;
        (added.client, added.id) = request_key(client, request)?;
        (added.seed, added.max_tokens) = (seed.named("seed")?, max_tokens.named("max_tokens")?);
        added.prompt = ids_from_bytes("prompt", prompt)?;
        added.stop_token_ids = ids_from_bytes("stop_token_ids", stop_token_ids)?;
        added.sampling = sampling.to_vec();
        let outputs = outputs
            .into_iter()
            .map(|(tokens, finished)| Ok(Output { tokens: ids_from_bytes("outputs", &tokens)?, finished }));
        added.outputs = outputs.collect::<PyResult<_>>()?;
        self.call(py, |scheduler| scheduler.add(added))
    }

    #[pyo3(signature = (client, request, sample = Number(Ok(-1))), text_signature = "(self, client, request, sample=-1)")]
    fn abort(&self, py: Python<'_>, client: Number<u32>, request: Number<u64>, sample: Number<i32>) -> PyResult<bool> {
        // Ids out of range do not exist.
        let (Number(Ok(client)), Number(Ok(request)), Number(Ok(sample))) = (client, request, sample) else {
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

    fn hold(&self, py: Python<'_>, client: Number<u32>, request: Number<u64>, holder: &str) -> PyResult<()> {
        let (client, request) = request_key(client, request)?;
        self.call(py, |scheduler| scheduler.hold(client, request, holder))
    }

    fn release(&self, py: Python<'_>, client: Number<u32>, request: Number<u64>, holder: &str) -> PyResult<()> {
        let (client, request) = request_key(client, request)?;
        self.call(py, |scheduler| scheduler.release(client, request, holder))
    }

    fn isolate(&self, py: Python<'_>, client: Number<u32>, request: Number<u64>) -> PyResult<()> {
        let (client, request) = request_key(client, request)?;
        self.call(py, |scheduler| scheduler.isolate(client, request))
    }

    fn isolated(&self, py: Python<'_>) -> PyResult<Option<(u32, u64)>> {
        let isolated = self.call(py, |scheduler| Ok(scheduler.isolated()))?;
        Ok(isolated.map(|(client, request)| (client.0, request.0)))
    }

    fn drop_client(&self, py: Python<'_>, client: Number<u32>) -> PyResult<()> {
        let client = ClientId(client.named("client")?);
        self.call(py, |scheduler| {
            scheduler.drop_client(client);
            Ok(())
        })
    }

    fn schedule(&self, py: Python<'_>, now: Number<f64>) -> PyResult<Option<Plan>> {
        let now = now.named("now")?;
        Ok(self.call(py, |scheduler| scheduler.schedule(now))?.map(Plan))
    }

    fn expire(&self, py: Python<'_>, now: Number<f64>) -> PyResult<()> {
        let now = now.named("now")?;
        self.call(py, |scheduler| scheduler.expire(now))
    }

    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    #[pyo3(signature = (step, starts, tokens, seconds = Number(Ok(0.0)), logprobs = None, embeddings = None),
        text_signature = "(self, step, starts, tokens, seconds=0.0, logprobs=None, embeddings=None)")]
    fn commit(
        &self,
        py: Python<'_>,
        step: Number<u64>,
        starts: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        seconds: Number<f64>,
        logprobs: Option<[PyBackedBytes; 6]>,
        embeddings: Option<[PyBackedBytes; 2]>,
    ) -> PyResult<Vec<u32>> {
        let (step, seconds) = (StepId(step.named("step")?), seconds.named("seconds")?);
        let starts = ids_from_buffer("starts", starts)?;
        let tokens = ids_from_buffer("tokens", tokens)?;
        let logprobs = logprobs.map(|columns| logprobs_from_bytes(&columns)).transpose()?;
        let embeddings = embeddings.map(|columns| embeddings_from_bytes(&columns)).transpose()?;
        self.call(py, |scheduler| {
            let clients = scheduler.commit(step, &starts, &tokens, seconds, logprobs.as_ref(), embeddings.as_ref())?;
            Ok(clients.iter().map(|client| client.0).collect())
        })
    }

    fn request_of(&self, py: Python<'_>, step: Number<u64>, row: Number<usize>) -> PyResult<Option<(u32, u64)>> {
        let (step, row) = (StepId(step.named("step")?), row.named("row")?);
        let name = self.call(py, |scheduler| scheduler.request_of(step, row))?;
        Ok(name.map(|(client, request)| (client.0, request.0)))
    }

    fn requests_in_flight(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64)>> {
        let requests = self.call(py, |scheduler| Ok(scheduler.requests_in_flight()))?;
        Ok(requests.iter().map(|(client, request)| (client.0, request.0)).collect())
    }

    fn note_step(&self, py: Python<'_>, plan: &Bound<'_, Plan>, note: &Bound<'_, PyAny>) -> PyResult<()> {
        let (plan, note) = (&plan.get().0, PyBuffer::<u32>::get(note)?);
        let cells = note.as_mut_slice(py).ok_or_else(|| SchedulerError::new_err("a note takes a writable buffer"))?;
        let scheduler = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = scheduler.requests_of(plan.step).map_err(|error| python_error(&error))?;
        step_trace::write(cells, plan.step.0, plan.num_tokens(), rows).ok_or_else(|| {
            SchedulerError::new_err(format!("a buffer of {} words is too short for a note", cells.len()))
        })
    }

    fn expected_seconds(&self, py: Python<'_>, step: Number<u64>) -> PyResult<Option<f64>> {
        let step = StepId(step.named("step")?);
        self.call(py, |scheduler| scheduler.expected_seconds(step))
    }

    fn history<'py>(
        &self,
        py: Python<'py>,
        client: Number<u32>,
        request: Number<u64>,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
        let (client, request) = request_key(client, request)?;
        let scheduler = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (prompt, outputs) = scheduler.history(client, request).map_err(|error| python_error(&error))?;
        let outputs = outputs.into_iter().map(|output| bytes(py, output, i32::to_le_bytes));
        Ok((bytes(py, prompt, i32::to_le_bytes)?, outputs.collect::<PyResult<_>>()?))
    }

    fn pending_clients(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.call(py, |scheduler| Ok(scheduler.pending_clients().iter().map(|client| client.0).collect()))
    }

    fn take_deltas<'py>(&self, py: Python<'py>, client: Number<u32>) -> PyResult<Option<reports::Deltas<'py>>> {
        let client = ClientId(client.named("client")?);
        let mut scheduler = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(deltas) = scheduler.take_deltas(client) else { return Ok(None) };
        reports::deltas(py, deltas).map(Some)
    }

    fn lose_device(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |scheduler| {
            scheduler.lose_device();
            Ok(())
        })
    }

    fn restore_host_blocks(&self, py: Python<'_>, blocks: &[u8]) -> PyResult<()> {
        let blocks = host_blocks_from_bytes(blocks)?;
        self.call(py, |scheduler| scheduler.restore_host_blocks(blocks))
    }

    fn propose(
        &self,
        py: Python<'_>,
        client: Number<u32>,
        request: Number<u64>,
        sample: Number<u32>,
        drafts: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (client, request) = request_key(client, request)?;
        let sample = sample.named("sample")?;
        let drafts = ids_from_buffer("drafts", drafts)?;
        self.call(py, |scheduler| scheduler.propose(client, request, sample, &drafts))
    }

    #[pyo3(signature = (client, request, num_tokens, *, asynchronous))]
    fn offer_load(
        &self,
        py: Python<'_>,
        client: Number<u32>,
        request: Number<u64>,
        num_tokens: Number<u32>,
        asynchronous: bool,
    ) -> PyResult<()> {
        let (client, request) = request_key(client, request)?;
        let num_tokens = num_tokens.named("num_tokens")?;
        self.call(py, |scheduler| scheduler.offer_load(client, request, num_tokens, asynchronous))
    }

    fn take_loads<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let loads = self.call(py, |scheduler| Ok(scheduler.take_loads()))?;
        loads.iter().map(|load| reports::load(py, load)).collect()
    }

    fn finish_load(&self, py: Python<'_>, load: Number<u64>, num_tokens: Number<u32>) -> PyResult<()> {
        let (load, num_tokens) = (LoadId(load.named("load")?), num_tokens.named("num_tokens")?);
        self.call(py, |scheduler| scheduler.finish_load(load, num_tokens))
    }

    fn take_saves<'py>(&self, py: Python<'py>) -> PyResult<Vec<reports::Save<'py>>> {
        let saves = self.call(py, |scheduler| Ok(scheduler.take_saves()))?;
        Ok(saves.iter().map(|save| reports::save(py, save)).collect())
    }

    fn finish_save(&self, py: Python<'_>, save: Number<u64>) -> PyResult<()> {
        let save = SaveId(save.named("save")?);
        self.call(py, |scheduler| scheduler.finish_save(save))
    }

    fn known_prefix<'py>(
        &self,
        py: Python<'py>,
        client: Number<u32>,
        request: Number<u64>,
    ) -> PyResult<(u32, Vec<Bound<'py, PyBytes>>)> {
        let (client, request) = request_key(client, request)?;
        let (num_tokens, hashes) = self.call(py, |scheduler| scheduler.known_prefix(client, request))?;
        Ok((num_tokens, hashes.iter().map(|hash| PyBytes::new(py, hash.as_bytes())).collect()))
    }

    fn prefill_seconds(&self, py: Python<'_>, num_tokens: Number<u32>) -> PyResult<Option<f64>> {
        let num_tokens = num_tokens.named("num_tokens")?;
        self.call(py, |scheduler| Ok(scheduler.prefill_seconds(num_tokens)))
    }

    #[pyo3(signature = (name, prompt, *, tenant = "", cache_salt = "", adapter = ""))]
    fn pin(
        &self,
        py: Python<'_>,
        name: Number<u64>,
        prompt: &[u8],
        tenant: &str,
        cache_salt: &str,
        adapter: &str,
    ) -> PyResult<u32> {
        let name = name.named("name")?;
        let of = Request {
            prompt: ids_from_bytes("prompt", prompt)?,
            tenant: tenant.to_owned(),
            cache_salt: cache_salt.to_owned(),
            adapter: adapter.to_owned(),
            ..Request::default()
        };
        self.call(py, |scheduler| scheduler.pin(name, &of))
    }

    fn unpin(&self, py: Python<'_>, name: Number<u64>) -> PyResult<bool> {
        let name = name.named("name")?;
        self.call(py, |scheduler| Ok(scheduler.unpin(name)))
    }

    fn reset_prefix_cache(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |scheduler| {
            scheduler.reset_prefix_cache();
            Ok(())
        })
    }

    #[pyo3(signature = (first, limit, tokens = true))]
    fn events<'py>(
        &self,
        py: Python<'py>,
        first: Number<u64>,
        limit: Number<usize>,
        tokens: bool,
    ) -> PyResult<(u64, u64, Vec<reports::Event<'py>>)> {
        let (first, limit) = (first.named("first")?, limit.named("limit")?);
        let taken = self.call(py, |scheduler| Ok(scheduler.events(first, limit)))?;
        Ok((taken.incarnation, taken.first, reports::events(py, &taken.events, tokens)?))
    }

    #[pyo3(signature = (seconds, first = None, **format))]
    fn event_batch<'py>(
        &self,
        py: Python<'py>,
        seconds: f64,
        first: Option<Number<u64>>,
        format: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<(u64, Bound<'py, PyBytes>)>> {
        let first = first.map(|first| first.named("first")).transpose()?;
        let format = format.map_or_else(|| Ok(BatchFormat::default()), keywords::read)?;
        let batch = self.call(py, |scheduler| {
            Ok(match first {
                Some(first) => scheduler.event_batch(first, format, seconds),
                None => Some(scheduler.snapshot_batch(format, seconds)),
            })
        })?;
        Ok(batch.map(|batch| (batch.next, PyBytes::new(py, &batch.payload))))
    }

    fn load_report<'py>(
        &self,
        py: Python<'py>,
        number: Number<i64>,
    ) -> PyResult<(i64, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let number = number.named("number")?;
        let report = self.call(py, |scheduler| Ok(scheduler.load_report(number)))?;
        Ok((report.next, PyBytes::new(py, &report.changes), PyBytes::new(py, &report.load)))
    }

    #[pyo3(signature = (tokens = true))]
    fn snapshot<'py>(&self, py: Python<'py>, tokens: bool) -> PyResult<(u64, u64, Vec<reports::Event<'py>>)> {
        let taken = self.call(py, |scheduler| Ok(scheduler.snapshot()))?;
        Ok((taken.incarnation, taken.next, reports::events(py, &taken.events, tokens)?))
    }

    fn explain<'py>(
        &self,
        py: Python<'py>,
        client: Number<u32>,
        request: Number<u64>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let (client, request) = request_key(client, request)?;
        let explanations = self.call(py, |scheduler| scheduler.explain(client, request))?;
        explanations.iter().map(|explanation| reports::explanation(py, explanation)).collect()
    }

    #[pyo3(signature = (limit, name = None))]
    fn requests<'py>(
        &self,
        py: Python<'py>,
        limit: Number<usize>,
        name: Option<&str>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let limit = limit.named("limit")?;
        let requests = self.call(py, |scheduler| Ok(scheduler.requests(limit, name)))?;
        requests.iter().map(|request| reports::request(py, request)).collect()
    }

    fn take_ended<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let requests = self.call(py, |scheduler| Ok(scheduler.take_ended()))?;
        requests.iter().map(|request| reports::request(py, request)).collect()
    }

    fn block_owners<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        reports::block_owners(py, &self.call(py, |scheduler| Ok(scheduler.block_owners()))?)
    }

    fn decisions<'py>(&self, py: Python<'py>, limit: Number<usize>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let limit = limit.named("limit")?;
        let decisions = self.call(py, |scheduler| {
            let decisions = scheduler.decisions();
            let skipped = decisions.len().saturating_sub(limit);
            Ok(decisions.skip(skipped).copied().collect::<Vec<_>>())
        })?;
        decisions.iter().map(|decision| reports::decision(py, decision)).collect()
    }

    fn tenants(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        let tenants = self.call(py, |scheduler| Ok(scheduler.tenants()))?;
        Ok(tenants.into_iter().map(|tenant| (tenant.tenant, tenant.service, tenant.num_waiting)).collect())
    }

    fn adapter_counts(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32, u32)>> {
        self.call(py, |scheduler| Ok(scheduler.adapter_counts()))
    }

    fn num_begun(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |scheduler| Ok(scheduler.num_begun()))
    }

    fn begun_requests(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64)>> {
        let requests = self.call(py, |scheduler| Ok(scheduler.begun_requests()))?;
        Ok(requests.into_iter().map(|(client, request)| (client.0, request.0)).collect())
    }

    fn live_requests(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64)>> {
        let requests = self.call(py, |scheduler| Ok(scheduler.live_requests()))?;
        Ok(requests.into_iter().map(|(client, request)| (client.0, request.0)).collect())
    }

    fn start_recording(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, pyllm_scheduler::Scheduler::start_recording)
    }

    fn take_recording<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let recording = self.call(py, |scheduler| Ok(scheduler.take_recording()))?;
        Ok(PyBytes::new(py, &recording))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.call(py, |scheduler| Ok(scheduler.stats()))?.named().into_py_dict(py)
    }

    fn num_uncomputed_tokens(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |scheduler| Ok(scheduler.num_uncomputed_tokens()))
    }

    fn fragmentation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.call(py, |scheduler| Ok(scheduler.fragmentation()))?.named().into_py_dict(py)
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

fn request_key(client: Number<u32>, request: Number<u64>) -> PyResult<(ClientId, RequestId)> {
    Ok((ClientId(client.named("client")?), RequestId(request.named("request")?)))
}

#[pyfunction]
fn replay<'py>(py: Python<'py>, recording: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let replay = py.detach(|| pyllm_scheduler::replay(recording)).map_err(|error| python_error(&error))?;
    reports::replay(py, &replay)
}

#[pymodule]
mod _rust {
    #[pymodule_export]
    use super::{NeverFitsError, Placement, Plan, RequestHasher, Scheduler, SchedulerError, replay};
    #[pymodule_export]
    use crate::checksum::xxh3;
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
