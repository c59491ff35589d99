//! Memory that kernels and the tensors of a step use again and again.

pub(crate) mod arena;
pub(crate) mod scratch;
