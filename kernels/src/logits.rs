//! Operations on logits: edits, sampling, log-probabilities, and the state of each slot's tokens.

pub(crate) mod edit_logits;
pub(crate) mod row;
pub(crate) mod states;
pub(crate) mod logprobs;
pub(crate) mod sampling;
