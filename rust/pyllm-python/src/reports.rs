//! Reports of the scheduler, as Python's own types. Knows no scheduling.

use pyllm_scheduler::{
    BlockOwners, Decision, DeltaColumns, Explanation, KvEvent, Load, Reason, Replay, RequestReport, Tier,
};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::buffers::bytes;

/// Kind, hash, parent, tokens, tier and group; fields that a kind lacks are empty.
pub(crate) type Event<'py> =
    (&'static str, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, &'static str, u32);

/// Events as tuples. Without `has_tokens` the tokens of blocks are left out.
pub(crate) fn events<'py>(py: Python<'py>, events: &[KvEvent], has_tokens: bool) -> PyResult<Vec<Event<'py>>> {
    let hash = |hash: &pyllm_scheduler::BlockHash| PyBytes::new(py, hash.as_bytes());
    let nothing = || PyBytes::new(py, b"");
    let converted = events.iter().map(|event| {
        Ok(match event {
            KvEvent::Stored { hash: name, parent, tokens, tier, group, .. } => (
                "stored",
                hash(name),
                parent.as_ref().map(hash),
                if has_tokens { bytes(py, tokens, i32::to_le_bytes)? } else { nothing() },
                tier_name(*tier),
                *group,
            ),
            KvEvent::Removed { hash: name, tier, group } => {
                ("removed", hash(name), None, nothing(), tier_name(*tier), *group)
            }
            KvEvent::Cleared => ("cleared", nothing(), None, nothing(), "", 0),
        })
    });
    converted.collect()
}

pub(crate) fn load<'py>(py: Python<'py>, load: &Load) -> PyResult<Bound<'py, PyDict>> {
    let blocks = load.blocks.iter().map(|blocks| {
        let blocks: Vec<i32> = blocks.iter().map(|block| block.0 as i32).collect();
        bytes(py, &blocks, i32::to_le_bytes)
    });
    let report = PyDict::new(py);
    report.set_item("id", load.id.0)?;
    report.set_item("client", load.client.0)?;
    report.set_item("request", load.request.0)?;
    report.set_item("first_token", load.first_token)?;
    report.set_item("num_tokens", load.num_tokens)?;
    report.set_item("blocks", blocks.collect::<PyResult<Vec<_>>>()?)?;
    report.set_item("step", load.step.map(|step| step.0))?;
    Ok(report)
}

pub(crate) fn explanation<'py>(py: Python<'py>, explanation: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let report = PyDict::new(py);
    report.set_item("sample", explanation.sample)?;
    report.set_item("state", explanation.state)?;
    report.set_item("reason", explanation.reason.map(Reason::name))?;
    report.set_item("hold", &explanation.hold)?;
    report.set_item("num_tokens", explanation.num_tokens)?;
    report.set_item("num_computed", explanation.num_computed)?;
    report.set_item("num_known", explanation.num_known)?;
    Ok(report)
}

pub(crate) fn request<'py>(py: Python<'py>, request: &RequestReport) -> PyResult<Bound<'py, PyDict>> {
    let numbers = [
        ("num_samples", request.num_samples),
        ("num_prompt_tokens", request.num_prompt_tokens),
        ("num_output_tokens", request.num_output_tokens),
        ("num_cached_tokens", request.num_cached_tokens),
        ("num_blocks", request.num_blocks),
        ("num_preemptions", request.num_preemptions),
    ];
    let samples = request.samples.iter().map(|sample| explanation(py, sample));
    let report = numbers.into_py_dict(py)?;
    report.set_item("client", request.client.0)?;
    report.set_item("request", request.id.0)?;
    report.set_item("name", &request.name)?;
    report.set_item("tenant", &request.tenant)?;
    report.set_item("priority", request.priority)?;
    report.set_item("arrival", request.arrival)?;
    report.set_item("scheduled_at", request.scheduled_at)?;
    report.set_item("ended_at", request.ended.map(|(at, _)| at))?;
    report.set_item("finish", request.ended.map(|(_, finish)| finish.name()))?;
    report.set_item("samples", samples.collect::<PyResult<Vec<_>>>()?)?;
    Ok(report)
}

pub(crate) fn block_owners<'py>(py: Python<'py>, owners: &BlockOwners) -> PyResult<Bound<'py, PyDict>> {
    let numbers = [("pinned", owners.pinned), ("in_transit", owners.in_transit), ("free", owners.free)];
    let report = numbers.into_py_dict(py)?;
    report.set_item("tenants", (&owners.tenants).into_py_dict(py)?)?;
    Ok(report)
}

pub(crate) type Save<'py> = (u64, Bound<'py, PyBytes>, u32, u32, u32, &'static str);

pub(crate) fn save<'py>(py: Python<'py>, save: &pyllm_scheduler::Save) -> Save<'py> {
    let hash = PyBytes::new(py, save.hash.as_bytes());
    (save.id.0, hash, save.group, save.index, save.block.0, save.retention.name())
}

pub(crate) fn decision<'py>(py: Python<'py>, decision: &Decision) -> PyResult<Bound<'py, PyDict>> {
    let numbers = [
        ("num_rows", decision.num_rows),
        ("num_tokens", decision.num_tokens),
        ("num_prefill_tokens", decision.num_prefill_tokens),
        ("num_admitted", decision.num_admitted),
        ("num_preempted", decision.num_preempted),
        ("num_swapped", decision.num_swapped),
        ("num_running", decision.num_running),
        ("num_waiting", decision.num_waiting),
        ("num_free_blocks", decision.num_free_blocks),
    ];
    let report = numbers.into_py_dict(py)?;
    report.set_item("step", decision.step.0)?;
    report.set_item("now", decision.now)?;
    report.set_item("stop", decision.stop.map(Reason::name))?;
    Ok(report)
}

pub(crate) fn replay<'py>(py: Python<'py>, replay: &Replay) -> PyResult<Bound<'py, PyDict>> {
    let report = PyDict::new(py);
    report.set_item("num_entries", replay.num_entries)?;
    report.set_item("num_steps", replay.num_steps)?;
    report.set_item("hash", format!("{:016x}", replay.hash))?;
    report.set_item("is_truncated", replay.is_truncated)?;
    report.set_item("stats", replay.stats.named().into_py_dict(py)?)?;
    Ok(report)
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host",
    }
}

pub(crate) type Deltas<'py> = [Bound<'py, PyBytes>; 16];

/// The columns of a client's new output.
pub(crate) fn deltas<'py>(py: Python<'py>, deltas: &DeltaColumns) -> PyResult<Deltas<'py>> {
    Ok([
        bytes(py, &deltas.requests, u64::to_le_bytes)?,
        bytes(py, &deltas.samples, i32::to_le_bytes)?,
        bytes(py, &deltas.offsets, i32::to_le_bytes)?,
        bytes(py, &deltas.token_starts, i32::to_le_bytes)?,
        bytes(py, &deltas.tokens, i32::to_le_bytes)?,
        bytes(py, &deltas.finishes, u8::to_le_bytes)?,
        bytes(py, &deltas.cached_tokens, i32::to_le_bytes)?,
        bytes(py, &deltas.logprobs.starts, i32::to_le_bytes)?,
        bytes(py, &deltas.logprobs.ids, i32::to_le_bytes)?,
        bytes(py, &deltas.logprobs.values, f32::to_le_bytes)?,
        bytes(py, &deltas.logprobs.ranks, i32::to_le_bytes)?,
        bytes(py, &deltas.embeddings.starts, i32::to_le_bytes)?,
        bytes(py, &deltas.embeddings.values, f32::to_le_bytes)?,
        bytes(py, &deltas.start_times.rows, i32::to_le_bytes)?,
        bytes(py, &deltas.start_times.queue, f32::to_le_bytes)?,
        bytes(py, &deltas.start_times.prefill, f32::to_le_bytes)?,
    ])
}
