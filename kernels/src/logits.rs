//! What happens to logits: edits, sampling, log-probabilities, and what each slot's tokens change.

pub(crate) mod edit_logits;
pub(crate) mod row;
pub(crate) mod states;
pub(crate) mod logprobs;
pub(crate) mod sampling;
