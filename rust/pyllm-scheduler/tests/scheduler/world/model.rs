//! The requests as their worker sees them: which are stateful, which prompts have log-probabilities, and random
//! grammars, which are sometimes not ready, or force the tokens that the oracle gives anyway.

use pyllm_scheduler::uniform;

use super::requests::Known;
use crate::device::{Model, Row};
use crate::oracle::{Prefix, mix};

pub(super) struct Requests<'a> {
    pub(super) all: &'a [Known],
    pub(super) weights_version: &'a str,
    /// The seed of the grammars in this step.
    pub(super) mood: u64,
}

impl Model for Requests<'_> {
    fn root(&self, request: &[u8]) -> Prefix {
        Prefix::empty(&self.known(request).request, self.weights_version)
    }

    fn prompt(&self, request: &[u8]) -> &[i32] {
        &self.known(request).request.prompt
    }

    fn is_stateful(&self, request: &[u8]) -> bool {
        self.known(request).request.stateful
    }

    fn adapter(&self, request: &[u8]) -> u32 {
        self.known(request).request.adapter_number
    }

    fn tells_ahead(&self, request: &[u8]) -> Option<bool> {
        self.known(request).tells_ahead
    }

    fn follow(&self, index: usize, row: &Row, num_sampled: usize) -> Option<Vec<i32>> {
        let mood = mix(self.mood ^ index as u64);
        match mood % 8 {
            0 | 1 => return None,
            2 | 3 => {}
            _ => return Some(Vec::new()),
        }
        let known = self.known(&row.request);
        let (prompt, context) = (&known.request.prompt, &row.context[..row.context.len() - row.num_drafts]);
        let output = [&context[prompt.len()..], &row.sampled[..num_sampled]].concat();
        let position = (context.len() - prompt.len()) as u32;
        let is_drawn_by = |sample| uniform(known.request.seed, position, sample).to_bits() == row.uniforms[0].to_bits();
        let sample = (0..).zip(&known.samples).find(|&(sample, _)| is_drawn_by(sample));
        let Some(rest) = sample.and_then(|(_, sample)| sample.expected.strip_prefix(&output[..])) else {
            return Some(Vec::new());
        };
        // A grammar does not know the sample's end, and forces tokens beyond it.
        Some(rest.iter().copied().chain([0, 1]).take(1 + (mood >> 8) as usize % 5).collect())
    }
}

impl Requests<'_> {
    pub(super) fn known(&self, sampling: &[u8]) -> &Known {
        known(self.all, sampling)
    }
}

/// The request that was added with these bytes.
pub(super) fn known<'a>(requests: &'a [Known], sampling: &[u8]) -> &'a Known {
    let index = u32::from_le_bytes(sampling.try_into().expect("the bytes that the request was added with"));
    &requests[index as usize]
}
