//! The ops of a step in order, recorded once and replayed many times. Knows no tensors: only the ops' own data.

use std::fmt;

use crate::isa::Isa;
use crate::op::times::{OpName, Watch};
use crate::op::{Extent, Op, OutOfRange};
use crate::threads::Pool;

/// Recorded ops, to be replayed.
#[derive(Default)]
pub(crate) struct Graph {
    ops: Vec<Box<dyn Op>>,
    capacity: Option<Extent>,
}

/// The reason why an op cannot be recorded, or a graph not be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphError {
    /// The op has another number of tokens than the ops before.
    Tokens {
        of_op: usize,
        of_graph: usize,
    },
    /// The replay has more tokens or rows than the graph was captured for.
    Capacity {
        wanted: Extent,
        capacity: Extent,
    },
    Index(OutOfRange),
}

impl fmt::Display for GraphError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens { of_op, of_graph } => write!(
                formatter,
                "an op of {of_op} tokens in a graph of {of_graph}: capture what has another first dimension in another graph"
            ),
            Self::Capacity { wanted, capacity } => {
                write!(
                    formatter,
                    "{} tokens in {} rows: the graph was captured for up to ",
                    wanted.tokens, wanted.rows
                )?;
                write!(formatter, "{} tokens", capacity.tokens)?;
                if capacity.rows < usize::MAX { write!(formatter, " in {} rows", capacity.rows) } else { Ok(()) }
            }
            Self::Index(error) => error.fmt(formatter),
        }
    }
}

impl Graph {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Add an op to the end.
    pub(crate) fn record(&mut self, op: Box<dyn Op>) -> Result<(), GraphError> {
        let of_op = op.capacity();
        let capacity = self.capacity.unwrap_or(of_op);
        if of_op.tokens != capacity.tokens {
            return Err(GraphError::Tokens { of_op: of_op.tokens, of_graph: capacity.tokens });
        }
        self.capacity = Some(Extent { rows: capacity.rows.min(of_op.rows), ..capacity });
        self.ops.push(op);
        Ok(())
    }

    /// Run every op in order, with calls of `watch`; those before a wrong index have run.
    ///
    /// # Safety
    ///
    /// See `Op::run`, of all ops, but for the extent, which is checked.
    pub(crate) unsafe fn replay(
        &self,
        extent: Extent,
        isa: Isa,
        pool: &mut Pool,
        watch: &mut impl Watch,
    ) -> Result<(), GraphError> {
        let capacity = self.capacity.unwrap_or(extent);
        if extent.tokens > capacity.tokens || extent.rows > capacity.rows {
            return Err(GraphError::Capacity { wanted: extent, capacity });
        }
        pool.keep_awake(|pool| {
            let mut coming = self.ops.iter().filter_map(|op| op.weights());
            coming.next().into_iter().for_each(|first| pool.announce(first));
            let mut ops = self.ops.iter().peekable();
            while let Some(op) = ops.next() {
                let joined = op.as_row_writer().zip(ops.peek()).filter(|(writer, next)| next.takes_rows_of(*writer));
                if op.weights().is_some() || joined.is_some() {
                    coming.next().into_iter().for_each(|next| pool.announce(next));
                }
                let name = || match joined {
                    Some((_, product)) => OpName { writer: Some(op.name()), op: product.name() },
                    None => OpName::of(op.name()),
                };
                // SAFETY: as the caller promises; the extent was checked.
                let done = watch.run(name, || unsafe {
                    match joined {
                        Some((writer, product)) => product.run_after(writer, extent, isa, pool),
                        None => op.run(extent, isa, pool),
                    }
                });
                done.map_err(GraphError::Index)?;
                if joined.is_some() {
                    ops.next();
                }
            }
            Ok(())
        })
    }
}
