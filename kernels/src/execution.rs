//! The run of an op that Python calls: at once, timed, or recorded in this thread's graph. Knows no particular op.

pub(crate) mod graph;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::isa::Isa;
use crate::memory::arena::Arena;
use crate::op::Op;
use crate::op::times::{OpName, OpTimes, Watch};
use crate::threads::pool::pool;
use graph::{Graph, GraphError};

/// The graph that a thread records its ops in, with the arrays that they use.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) graph: Arc<Mutex<Graph>>,
    /// The memory of outputs, which is lent again once no array refers to it.
    pub(crate) arena: Arc<Arena>,
    kept: Arc<Mutex<Vec<Py<PyAny>>>>,
}

impl Recorder {
    /// Keeps arrays outside of the arena alive as long as the graph.
    fn keep(&self, py: Python<'_>, arrays: &[&Array]) {
        let outside = arrays.iter().filter(|array| !self.arena.owns(array.address()));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(outside.map(|array| array.object().clone_ref(py)));
    }
}

/// The state of a thread whose ops do not just run.
#[derive(Clone)]
enum Watcher {
    Capture(Recorder),
    Time(Arc<Mutex<OpTimes>>),
}

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Starts to record this thread's ops in the graph.
pub(crate) fn record_in(recorder: &Recorder) -> PyResult<()> {
    watch(Watcher::Capture(recorder.clone()))
}

/// Ends the recording of this thread's ops, which run again.
pub(crate) fn end_recording(recorder: &Recorder) -> PyResult<()> {
    let is_here =
        |watcher: &Watcher| matches!(watcher, Watcher::Capture(own) if Arc::ptr_eq(&own.graph, &recorder.graph));
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

/// Run an op at its capacity, or record it, and keep its arrays, if this thread captures a graph.
///
/// # Safety
///
/// See `Op::run`, now and whenever the graph is replayed.
pub(crate) unsafe fn execute(py: Python<'_>, op: impl Op + 'static, arrays: &[&Array]) -> PyResult<()> {
    // SAFETY: as the caller promises.
    let run = || unsafe { op.run(op.capacity(), Isa::used(), &mut pool()) };
    let done = match WATCHER.with_borrow(Clone::clone) {
        None => py.detach(run),
        Some(Watcher::Time(times)) => {
            py.detach(|| times.lock().unwrap_or_else(PoisonError::into_inner).run(|| OpName::of(op.name()), run))
        }
        Some(Watcher::Capture(recorder)) => {
            recorder.keep(py, arrays);
            let mut graph = recorder.graph.lock().unwrap_or_else(PoisonError::into_inner);
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
