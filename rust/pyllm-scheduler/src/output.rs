//! Output for clients: tokens as columns, with their log-probabilities and other data.

pub(crate) mod deltas;
pub(crate) mod embeddings;
pub(crate) mod logprobs;
pub(crate) mod start_times;
