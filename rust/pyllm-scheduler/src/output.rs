//! What clients are given: tokens as columns, and what comes beside them.

pub(crate) mod deltas;
pub(crate) mod embeddings;
pub(crate) mod logprobs;
pub(crate) mod start_times;
