//! Memory that kernels and the tensors of a step reuse.

pub(crate) mod arena;
pub(crate) mod scratch;
