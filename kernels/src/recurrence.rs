//! Ops that keep a state along a sequence, in float32: a row of a step reads one state and writes another.
//!
//! Rows are computed in their order, since one may read what an earlier one wrote, and so are a row's tokens. Tasks
//! share neither a head nor a channel. So no result depends on how a sequence is cut into rows, on other rows, or on the
//! number of threads.
#![expect(clippy::inline_always, reason = "see `Vector`")]

pub(crate) mod causal_convolution;
pub(crate) mod gated_delta_rule;
pub(crate) mod selective_scan;
pub(crate) mod state_space;

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::Array;
use crate::dtype::DType;
use crate::op::{Extent, Indices, Matrix, OutOfRange, check_query_starts, check_range};
use crate::vector::{LANES, Vector, prefetch};

/// A `StateRows` of Python.
#[derive(FromPyObject)]
pub(crate) struct RowArrays {
    query_starts: Array,
    sources: Array,
    destinations: Array,
}

impl RowArrays {
    fn read(&self) -> PyResult<StateRows> {
        let [rows] = self.sources.dimensions("sources")?;
        Ok(StateRows {
            rows,
            query_starts: self.query_starts.indices("query_starts", &[rows + 1])?,
            sources: self.sources.indices("sources", &[rows])?,
            destinations: self.destinations.indices("destinations", &[rows])?,
        })
    }

    fn arrays(&self) -> [&Array; 3] {
        [&self.query_starts, &self.sources, &self.destinations]
    }
}

/// Addresses of each row's tokens and states.
#[derive(Clone, Copy, Debug)]
struct StateRows {
    rows: usize,
    query_starts: Indices,
    sources: Indices,
    destinations: Indices,
}

/// States in float32, each contiguous.
#[derive(Clone, Copy, Debug)]
struct States {
    count: usize,
    numbers: Matrix,
}

impl States {
    /// The states of an array, of a shape each.
    fn of(states: &Array, shape: &[usize]) -> PyResult<Self> {
        states.check_dtype("states", DType::Float32)?;
        states.check_shape("states", &[&[states.len()], shape].concat())?;
        Ok(Self { count: states.len(), numbers: states.rows("states")? })
    }
}

/// The rows of a step; their indices are valid.
struct Steps<'a> {
    query_starts: &'a [i32],
    sources: &'a [i32],
    destinations: &'a [i32],
    states: Matrix,
}

/// A row of a step.
struct Row {
    tokens: Range<usize>,
    /// The state before the row; None: zeros.
    source: Option<*const f32>,
    /// The place of the state after it; None: it is not kept.
    destination: Option<*mut f32>,
    /// The state that the next row reads.
    coming: Coming,
}

/// A state, or a part of one, that is read soon.
#[derive(Clone, Copy)]
struct Coming(Option<*const f32>);

impl Coming {
    /// The state from a number on.
    fn from(self, first: usize) -> Self {
        Self(self.0.map(|state| state.wrapping_add(first)))
    }

    /// Prefetch some numbers.
    #[inline(always)]
    fn prefetch(self, first: usize, count: usize) {
        if let Some(state) = self.0 {
            prefetch(state.wrapping_add(first).addr(), count * size_of::<f32>());
        }
    }
}

impl StateRows {
    /// The first rows, checked.
    ///
    /// # Safety
    ///
    /// The pointers are valid, and nothing writes to the indices meanwhile.
    unsafe fn steps<'a>(&self, extent: Extent, states: &States) -> Result<Steps<'a>, OutOfRange> {
        // SAFETY: as the caller promises.
        let steps = unsafe {
            Steps {
                query_starts: self.query_starts.first(extent.rows + 1),
                sources: self.sources.first(extent.rows),
                destinations: self.destinations.first(extent.rows),
                states: states.numbers,
            }
        };
        check_query_starts(steps.query_starts, extent.tokens)?;
        check_range("source of row", steps.sources, -1..states.count as i64)?;
        check_range("destination of row", steps.destinations, -1..states.count as i64)?;
        Ok(steps)
    }
}

impl Steps<'_> {
    fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.sources.len()).map(|row| Row {
            tokens: self.query_starts[row] as usize..self.query_starts[row + 1] as usize,
            source: self.source(row),
            destination: self.state(self.destinations[row]),
            coming: Coming((row + 1 < self.sources.len()).then(|| self.source(row + 1)).flatten()),
        })
    }

    fn source(&self, row: usize) -> Option<*const f32> {
        self.state(self.sources[row]).map(<*mut f32>::cast_const)
    }

    fn state(&self, index: i32) -> Option<*mut f32> {
        usize::try_from(index).ok().map(|index| self.states.row(index))
    }
}

/// The number of heads that share a head of another kind.
fn heads_a_group(heads: usize, groups: usize) -> PyResult<usize> {
    if groups == 0 || heads == 0 || !heads.is_multiple_of(groups) {
        return Err(PyValueError::new_err(format!(
            "{heads} heads over {groups} groups: each of those must be shared by as many of these"
        )));
    }
    Ok(heads / groups)
}

/// The sums of sixteen numbers each, sixteen of them, which lie one after the other.
///
/// # Safety
///
/// See `Vector::load`.
#[inline(always)]
unsafe fn sums_of<V: Vector>(numbers: *const f32) -> V {
    // SAFETY: as the caller promises.
    unsafe {
        let mut columns = V::load_transposed(&std::array::from_fn(|index| numbers.wrapping_add(index * LANES)));
        let mut count = LANES;
        while count > 1 {
            count /= 2;
            for column in 0..count {
                columns[column] = columns[column].add(columns[column + count]);
            }
        }
        columns[0]
    }
}
