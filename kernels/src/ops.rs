//! The shim of every op except the packed linears: Python's tuples to an op, which runs or is recorded in this thread's
//! graph. `_cpu.pyi` documents each function.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::attention::{
    Batch, Budget, KeySummaries, NO_WINDOW, PagedAttention, ScoreBlocks, SelectBlocks, Selection, SparseRows,
    SummaryKind,
};
use crate::blocks::CopyBlocks;
use crate::dtype::DType;
use crate::experts::{ExpertMatrices, Experts, Router};
use crate::graph::{Graph, GraphError};
use crate::isa::Isa;
use crate::kv_layer::KvLayer;
use crate::logits::edit_logits::{EditLogits, Edits, Masks};
use crate::logits::logprobs::Logprobs;
use crate::logits::sampling::{Parameters, Sampling};
use crate::op::times::{OpName, OpTimes, Watch};
use crate::op::{Indices, Matrix, Op};
use crate::rope::{HeadNorm, RopeAndKvWrite};
use crate::rows::activation::{Activation, Kind};
use crate::rows::elementwise::{Change, Elementwise};
use crate::rows::norm::{Norm, Stream};
use crate::threads::pool::pool;

/// The state of a thread whose ops do not just run.
#[derive(Clone)]
enum Watcher {
    Capture(Arc<Mutex<Graph>>),
    Time(Arc<Mutex<OpTimes>>),
}

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Starts to record this thread's ops in the graph.
pub(crate) fn record_in(graph: &Arc<Mutex<Graph>>) -> PyResult<()> {
    watch(Watcher::Capture(Arc::clone(graph)))
}

/// Ends the recording of this thread's ops, which run again.
pub(crate) fn end_recording(graph: &Arc<Mutex<Graph>>) -> PyResult<()> {
    let is_here = |watcher: &Watcher| matches!(watcher, Watcher::Capture(recorded) if Arc::ptr_eq(recorded, graph));
    if end_watch(is_here) {
        return Ok(());
    }
    Err(PyRuntimeError::new_err("this thread is not capturing this graph: begin its capture first"))
}

/// Starts to time this thread's ops.
pub(crate) fn time_in(times: &Arc<Mutex<OpTimes>>) -> PyResult<()> {
    watch(Watcher::Time(Arc::clone(times)))
}

/// Ends the timing of this thread's ops.
pub(crate) fn end_timing(times: &Arc<Mutex<OpTimes>>) -> PyResult<()> {
    if end_watch(|watcher| matches!(watcher, Watcher::Time(own) if Arc::ptr_eq(own, times))) {
        return Ok(());
    }
    Err(PyRuntimeError::new_err("this thread's ops are not timed here: begin first"))
}

/// The times of this thread's ops, if they are timed.
pub(crate) fn timed() -> Option<Arc<Mutex<OpTimes>>> {
    WATCHER.with_borrow(|watcher| match watcher {
        Some(Watcher::Time(times)) => Some(Arc::clone(times)),
        Some(Watcher::Capture(_)) | None => None,
    })
}

fn watch(new: Watcher) -> PyResult<()> {
    WATCHER.with_borrow_mut(|watcher| {
        let text = match watcher {
            None => {
                *watcher = Some(new);
                return Ok(());
            }
            Some(Watcher::Capture(_)) => "this thread is capturing a graph already: end that capture first",
            Some(Watcher::Time(_)) => "this thread's ops are being timed: end that first",
        };
        Err(PyRuntimeError::new_err(text))
    })
}

/// Removes this thread's watcher. False, without a change, if it is another or there is none.
fn end_watch(is_here: impl Fn(&Watcher) -> bool) -> bool {
    WATCHER.with_borrow_mut(|watcher| watcher.take_if(|watcher| is_here(watcher)).is_some())
}

/// Run an op at its capacity, or record it if this thread captures a graph.
///
/// # Safety
///
/// See `Op::run`, now and whenever the graph is replayed.
pub(crate) unsafe fn execute(py: Python<'_>, op: impl Op + 'static) -> PyResult<()> {
    // SAFETY: as the caller promises.
    let run = || unsafe { op.run(op.capacity(), Isa::best(), &mut pool()) };
    let done = match WATCHER.with_borrow(Clone::clone) {
        None => py.detach(run),
        Some(Watcher::Time(times)) => {
            py.detach(|| times.lock().unwrap_or_else(PoisonError::into_inner).run(|| OpName::of(op.name()), run))
        }
        Some(Watcher::Capture(graph)) => {
            let mut graph = graph.lock().unwrap_or_else(PoisonError::into_inner);
            return graph.record(Box::new(op)).map_err(|error| graph_error(&error));
        }
    };
    done.map_err(|error| PyIndexError::new_err(error.to_string()))
}

pub(crate) fn graph_error(error: &GraphError) -> PyErr {
    match error {
        GraphError::Index(error) => PyIndexError::new_err(error.to_string()),
        GraphError::Tokens { .. } | GraphError::Capacity { .. } => PyValueError::new_err(error.to_string()),
    }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[pyo3(signature = (shape, x, weight, epsilon, centred, out, stream=None))]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn norm(
    py: Python<'_>,
    shape: (usize, usize),
    x: Matrix,
    weight: Matrix,
    epsilon: f32,
    centred: bool,
    out: Matrix,
    stream: Option<(f32, Matrix, Matrix)>,
) -> PyResult<()> {
    let stream = stream.map(|(factor, residual, sum)| Stream { factor, residual, sum });
    let (tokens, hidden) = shape;
    check_alike("out", out, x, (tokens, hidden))?;
    if let Some(Stream { residual, sum, .. }) = stream {
        check_alike("residual", residual, x, (tokens, hidden))?;
        check_alike("total", sum, x, (tokens, hidden))?;
    }
    // SAFETY: as the caller promises.
    unsafe { execute(py, Norm { tokens, hidden, epsilon, centred, x, weight, out, stream }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn activation(
    py: Python<'_>,
    kind: &str,
    gated: bool,
    shape: (usize, usize),
    x: Matrix,
    out: Matrix,
) -> PyResult<()> {
    let kind = parse_kind(kind)?;
    let (tokens, width) = shape;
    check_alike("out", out, x, (tokens, width))?;
    // SAFETY: as the caller promises.
    unsafe { execute(py, Activation { kind, gated, tokens, width, x, out }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn experts(
    py: Python<'_>,
    tokens: usize,
    x: Matrix,
    logits: Matrix,
    router: (usize, usize, bool),
    own: (usize, usize),
    kind: Kind,
    matrices: [(PyRef<'_, crate::Linear>, usize, Option<Matrix>); 3],
    out: Matrix,
) -> PyResult<()> {
    let ((num_experts, active, normalised), (first, count)) = (router, own);
    if active == 0 || active > num_experts || count == 0 || first + count > num_experts {
        return Err(PyValueError::new_err(format!(
            "{active} of {num_experts} experts, of which those from {first} on, {count} in number, are here"
        )));
    }
    let [gate, up, down] = matrices.map(|(linear, packed, bias)| {
        let matrix = linear.0.split(count).map(|linear| ExpertMatrices { linear, packed, bias });
        matrix.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{} outputs are not those of {count} experts, each a multiple of 32",
                linear.0.out_features
            ))
        })
    });
    let (gate, up, down) = (gate?, up?, down?);
    let (hidden, size) = (down.linear.out_features, down.linear.in_features);
    for (linear, shape) in [(gate.linear, (size, hidden)), (up.linear, (size, hidden)), (down.linear, (hidden, size))] {
        if (linear.out_features, linear.in_features) != shape || linear.dtype != x.dtype {
            return Err(PyValueError::new_err(format!(
                "an expert's matrix of {:?} [{}, {}] beside {:?} {shape:?}",
                linear.dtype, linear.out_features, linear.in_features, x.dtype
            )));
        }
    }
    for (matrices, width) in [(gate, size), (up, size), (down, hidden)] {
        matrices.bias.map_or(Ok(()), |bias| check_alike("bias", bias, x, (count, width)))?;
    }
    if gate.bias.is_some() != up.bias.is_some() {
        return Err(PyValueError::new_err("a bias of the gate or of up alone: give both or none"));
    }
    check_alike("x", x, x, (tokens, hidden))?;
    check_alike("logits", logits, x, (tokens, num_experts))?;
    check_alike("out", out, x, (tokens, hidden))?;
    let router = Router { num_experts, active, normalised, first, count };
    let op = Experts { tokens, x, logits, router, kind, gate, up, down, out };
    // SAFETY: as the caller promises.
    unsafe { execute(py, op) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn add(
    py: Python<'_>,
    shape: (usize, usize),
    x: Matrix,
    residual: Matrix,
    factor: f32,
    out: Matrix,
) -> PyResult<()> {
    check_alike("residual", residual, x, shape)?;
    // SAFETY: as the caller promises.
    unsafe { change(py, Change::Add { factor, residual }, shape, x, out) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn add_bias(py: Python<'_>, shape: (usize, usize), x: Matrix, bias: Matrix) -> PyResult<()> {
    // SAFETY: as the caller promises.
    unsafe { change(py, Change::Bias(bias), shape, x, x) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[pyo3(signature = (shape, x, factor, cap=None))]
pub(crate) unsafe fn scale_and_cap(
    py: Python<'_>,
    shape: (usize, usize),
    x: Matrix,
    factor: f32,
    cap: Option<f32>,
) -> PyResult<()> {
    // SAFETY: as the caller promises.
    unsafe { change(py, Change::Scale { factor, cap }, shape, x, x) }
}

/// # Safety
///
/// See `execute`.
unsafe fn change(py: Python<'_>, change: Change, shape: (usize, usize), x: Matrix, out: Matrix) -> PyResult<()> {
    let (tokens, width) = shape;
    check_alike("out", out, x, shape)?;
    // SAFETY: as the caller promises.
    unsafe { execute(py, Elementwise { change, tokens, width, x, out }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[pyo3(signature = (shape, heads, positions, cos_sin, slot_mapping, cache, norm=None, query_scales=None))]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn rope_and_kv_write(
    py: Python<'_>,
    shape: (usize, usize),
    heads: (Matrix, Matrix, Matrix),
    positions: usize,
    cos_sin: (usize, usize, usize),
    slot_mapping: usize,
    cache: KvLayer,
    norm: Option<(Matrix, Matrix, f32)>,
    query_scales: Option<usize>,
) -> PyResult<()> {
    let ((tokens, num_heads), (query, key, value)) = (shape, heads);
    let (cos_sin, num_positions, rotary_size) = cos_sin;
    if !rotary_size.is_multiple_of(2) || rotary_size > cache.head_dim {
        return Err(PyValueError::new_err(format!(
            "{rotary_size} dimensions of heads of {} cannot be rotated in pairs: give an even number, at most those",
            cache.head_dim
        )));
    }
    check_alike("query", query, query, (tokens, num_heads * cache.head_dim))?;
    check_alike("key", key, query, (tokens, cache.kv_heads * cache.head_dim))?;
    check_alike("value", value, query, (tokens, cache.kv_heads * cache.head_dim))?;
    let op = RopeAndKvWrite {
        tokens,
        heads: num_heads,
        query,
        key,
        value,
        positions: Indices(positions),
        cos_sin: Matrix { dtype: DType::Float32, address: cos_sin, stride: rotary_size },
        num_positions,
        norm: norm.map(|(query_weight, key_weight, epsilon)| HeadNorm { query_weight, key_weight, epsilon }),
        query_scales,
        slot_mapping: Indices(slot_mapping),
        cache,
    };
    // SAFETY: as the caller promises.
    unsafe { execute(py, op) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn paged_attention(
    py: Python<'_>,
    shape: (usize, usize),
    query: Matrix,
    cache: KvLayer,
    batch: Batch,
    layer: (f32, Option<usize>, Option<f32>, Option<usize>),
    out: Matrix,
) -> PyResult<()> {
    let ((tokens, heads), (scale, window, soft_cap, sinks)) = (shape, layer);
    let window = window.unwrap_or(NO_WINDOW);
    if window == 0 {
        return Err(PyValueError::new_err("a window of 0 positions: a token sees at least itself"));
    }
    check_heads(heads, cache.kv_heads)?;
    check_alike("out", out, query, (tokens, heads * cache.head_dim))?;
    // SAFETY: as the caller promises.
    unsafe { execute(py, PagedAttention { tokens, heads, scale, window, soft_cap, sinks, query, out, cache, batch }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn score_blocks(
    py: Python<'_>,
    shape: (usize, usize),
    query: Matrix,
    cache: KvLayer,
    batch: Batch,
    is_sparse: usize,
    scale: f32,
    summaries: (&str, usize, usize),
    budget: (usize, usize, usize),
    shares: usize,
) -> PyResult<()> {
    let ((tokens, heads), (kind, address, known)) = (shape, summaries);
    check_heads(heads, cache.kv_heads)?;
    let kind = match kind {
        "mean" => SummaryKind::Mean,
        "bounds" => SummaryKind::Bounds,
        _ => return Err(PyValueError::new_err(format!("no summaries {kind:?} of keys: use mean or bounds"))),
    };
    let rows = SparseRows { tokens, cache, batch, is_sparse: Indices(is_sparse), budget: read_budget(budget)? };
    let summaries = KeySummaries { kind, address, known };
    // SAFETY: as the caller promises.
    unsafe { execute(py, ScoreBlocks { rows, heads, scale, query, summaries, shares }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn select_blocks(
    py: Python<'_>,
    tokens: usize,
    shares: usize,
    cache: KvLayer,
    batch: Batch,
    is_sparse: usize,
    budget: (usize, usize, usize),
    out: (usize, usize, usize),
) -> PyResult<()> {
    let (block_tables, slots, sequence_lengths) = out;
    let rows = SparseRows { tokens, cache, batch, is_sparse: Indices(is_sparse), budget: read_budget(budget)? };
    let out = Selection { block_tables, slots, sequence_lengths };
    // SAFETY: as the caller promises.
    unsafe { execute(py, SelectBlocks { rows, shares, out }) }
}

fn read_budget((num_sink_blocks, top_k, num_recent_blocks): (usize, usize, usize)) -> PyResult<Budget> {
    if num_recent_blocks == 0 {
        return Err(PyValueError::new_err("no recent block: a token sees at least the one it is in"));
    }
    Ok(Budget { num_sink_blocks, top_k, num_recent_blocks })
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn copy_blocks(py: Python<'_>, cache: KvLayer, copies: usize, num_copies: usize) -> PyResult<()> {
    // SAFETY: as the caller promises.
    unsafe { execute(py, CopyBlocks { cache, copies: Indices(copies), num_copies }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
pub(crate) unsafe fn sample(
    py: Python<'_>,
    num_samples: usize,
    shape: (usize, usize),
    logits: Matrix,
    rows: Option<usize>,
    parameters: Option<(usize, usize, usize, usize, usize)>,
    out: usize,
) -> PyResult<()> {
    let (num_rows, vocabulary) = shape;
    if vocabulary == 0 || vocabulary > i32::MAX as usize || (rows.is_none() && num_rows != num_samples) {
        return Err(PyValueError::new_err(format!(
            "{num_samples} samples of {num_rows} rows of {vocabulary} logits: give at least one logit, and a row each"
        )));
    }
    let parameters = parameters.map(|(temperature, top_k, top_p, min_p, uniforms)| Parameters {
        temperature,
        top_k,
        top_p,
        min_p,
        uniforms,
    });
    let rows = rows.map(Indices);
    // SAFETY: as the caller promises.
    unsafe { execute(py, Sampling { samples: num_samples, logits, num_rows, vocabulary, rows, parameters, out }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn edit_logits(
    py: Python<'_>,
    num_samples: usize,
    shape: (usize, usize),
    logits: Matrix,
    rows: usize,
    edits: Edits,
    masks: Option<Masks>,
    out: usize,
) -> PyResult<()> {
    let (num_rows, vocabulary) = shape;
    let rows = Indices(rows);
    // SAFETY: as the caller promises.
    unsafe { execute(py, EditLogits { samples: num_samples, logits, num_rows, vocabulary, rows, edits, masks, out }) }
}

/// # Safety
///
/// The addresses are those that the stub documents.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "an op has what the stub says")]
pub(crate) unsafe fn logprobs(
    py: Python<'_>,
    num_samples: usize,
    shape: (usize, usize),
    logits: Matrix,
    rows: usize,
    chosen: usize,
    num_top: usize,
    out: (usize, usize, usize),
) -> PyResult<()> {
    let ((num_rows, vocabulary), (ids, values, ranks)) = (shape, out);
    if vocabulary > i32::MAX as usize || num_top > vocabulary {
        return Err(PyValueError::new_err(format!(
            "the {num_top} likeliest of {vocabulary} tokens: ask for that many at most"
        )));
    }
    let (rows, chosen) = (Indices(rows), Indices(chosen));
    let op = Logprobs { samples: num_samples, logits, num_rows, vocabulary, rows, chosen, num_top, ids, values, ranks };
    // SAFETY: as the caller promises.
    unsafe { execute(py, op) }
}

/// A name; or the limit and the factor of a clamped gate.
impl<'py> FromPyObject<'_, 'py> for Kind {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<(f32, f32)>() {
            Ok((limit, alpha)) => Ok(Self::ClampedSwiglu { limit, alpha }),
            Err(_) => parse_kind(&object.extract::<PyBackedStr>()?),
        }
    }
}

/// Addresses of starts, ids, bias, repetition and subtracted numbers, and the number of edits.
impl<'py> FromPyObject<'_, 'py> for Edits {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (starts, ids, bias, repetition, subtracted, count) =
            object.extract::<(usize, usize, usize, usize, usize, usize)>()?;
        Ok(Self { starts: Indices(starts), count, ids: Indices(ids), bias, repetition, subtracted })
    }
}

/// Addresses of each sample's mask and of the masks, and their shape.
impl<'py> FromPyObject<'_, 'py> for Masks {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (rows, address, (count, words_each)) = object.extract::<(usize, usize, (usize, usize))>()?;
        Ok(Self { rows: Indices(rows), address, count, words_each })
    }
}

/// dtype, address, elements from one row to the next.
impl<'py> FromPyObject<'_, 'py> for Matrix {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (dtype, address, stride) = object.extract::<(PyBackedStr, usize, usize)>()?;
        Ok(Self { dtype: parse_dtype(&dtype)?, address, stride })
    }
}

/// dtype, addresses of keys and values, and the shape.
impl<'py> FromPyObject<'_, 'py> for KvLayer {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (dtype, key_address, value_address, shape) = object.extract::<(PyBackedStr, usize, usize, [usize; 4])>()?;
        let [num_blocks, block_size, kv_heads, head_dim] = shape;
        if shape.contains(&0) || num_blocks.checked_mul(block_size).is_none_or(|cells| cells > i32::MAX as usize) {
            return Err(PyValueError::new_err(format!(
                "a cache of shape {shape:?}: no dimension may be 0, and there may be up to 2,147,483,647 tokens"
            )));
        }
        let dtype = parse_dtype(&dtype)?;
        Ok(Self { dtype, key_address, value_address, num_blocks, block_size, kv_heads, head_dim })
    }
}

/// Addresses and sizes: block tables and their shape, slots, query starts, sequence lengths, and the number of rows.
impl<'py> FromPyObject<'_, 'py> for Batch {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (block_tables, (num_slots, max_blocks), slots, query_starts, sequence_lengths, rows) =
            object.extract::<(usize, (usize, usize), usize, usize, usize, usize)>()?;
        Ok(Self {
            rows,
            block_tables: Indices(block_tables),
            num_slots,
            max_blocks,
            slots: Indices(slots),
            query_starts: Indices(query_starts),
            sequence_lengths: Indices(sequence_lengths),
        })
    }
}

/// Check that each KV head serves equally many query heads.
fn check_heads(heads: usize, kv_heads: usize) -> PyResult<()> {
    if heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(PyValueError::new_err(format!(
            "{heads} query heads over {kv_heads} KV heads: each of those must serve as many of these"
        )));
    }
    Ok(())
}

/// Check that rows have the dtype of another matrix, and do not overlap, as threads write to them in parallel.
fn check_alike(name: &str, rows: Matrix, other: Matrix, (num_rows, width): (usize, usize)) -> PyResult<()> {
    if rows.dtype != other.dtype || (num_rows > 1 && rows.stride < width) {
        return Err(PyValueError::new_err(format!(
            "{name} is {:?} with rows {} apart: it must be {:?}, and a row has {width} elements",
            rows.dtype, rows.stride, other.dtype
        )));
    }
    Ok(())
}

fn parse_kind(kind: &str) -> PyResult<Kind> {
    match kind {
        "silu" => Ok(Kind::Silu),
        "gelu" => Ok(Kind::Gelu),
        "gelu_tanh" => Ok(Kind::GeluTanh),
        _ => Err(PyValueError::new_err(format!("no activation {kind:?}: use silu, gelu or gelu_tanh"))),
    }
}

fn parse_dtype(dtype: &str) -> PyResult<DType> {
    match dtype {
        "float32" => Ok(DType::Float32),
        "bfloat16" => Ok(DType::Bfloat16),
        _ => Err(PyValueError::new_err(format!("no kernel for {dtype}: use float32 or bfloat16"))),
    }
}
