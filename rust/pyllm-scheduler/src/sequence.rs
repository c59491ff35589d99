//! One sample of a live request: its tokens, its blocks, and how far it is computed. Knows no queue and no other
//! sequence; the prompt belongs to the request and is handed in.

use std::ops::Range;

use crate::arena::Key;
use crate::deltas::Client;
use crate::hash::BlockHash;
use crate::ids::{BlockId, Slot, StepId};
use crate::request::Request;

/// A request being served.
pub(crate) struct LiveRequest {
    pub(crate) request: Request,
    pub(crate) client: Key<Client>,
    pub(crate) serial: u64,
    pub(crate) root: BlockHash,
    pub(crate) prompt_hashes: Vec<BlockHash>, // of the prompt's full blocks
    pub(crate) samples: Vec<Sample>,
    pub(crate) num_unfinished: u32,
    pub(crate) hold: Option<String>, // the reason
}

impl LiveRequest {
    pub(crate) fn queue_key(&self, sample: u32) -> QueueKey {
        QueueKey::new(self.request.arrival, self.serial, sample)
    }
}

/// Where one sample of a request is.
#[derive(Clone, Copy)]
pub(crate) enum Sample {
    /// Its prompt is being computed by the sequence of another sample.
    Unforked,
    Live(Key<Sequence>),
    Finished,
}

pub(crate) struct Sequence {
    pub(crate) request: Key<LiveRequest>,
    pub(crate) sample: u32,
    /// Positions to sample where the known tokens end: n until the samples fork, then 1.
    pub(crate) num_samples: u32,
    pub(crate) state: State,
    pub(crate) queue_key: QueueKey,
    pub(crate) num_prompt_tokens: u32,
    /// Prompt and output tokens at which it ends.
    pub(crate) max_length: u32,
    /// Tokens whose keys and values are in `blocks`, or will be by the steps in flight.
    pub(crate) num_computed: u32,
    /// Sampled tokens that are still in flight.
    pub(crate) num_in_flight: u32,
    /// Prompt tokens found in the prefix cache at first admission; none before.
    pub(crate) cached_tokens: Option<u32>,
    /// The last step that has a row of it.
    pub(crate) last_step: StepId,
    pub(crate) output: Vec<i32>,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) num_stored: usize,             // blocks that the prefix cache has seen
    pub(crate) output_hashes: Vec<BlockHash>, // of the full blocks after the prompt's
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Held,
    Running(Slot),
}

/// The order of the waiting queue: first come, first served, then by insertion and sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    arrival: u64,
    serial: u64,
    sample: u32,
}

impl QueueKey {
    /// `arrival` is finite.
    pub(crate) fn new(arrival: f64, serial: u64, sample: u32) -> Self {
        // The bits of a float are in its order once negatives are flipped and positives lifted above them.
        let bits = (arrival + 0.0).to_bits();
        let sign = 1 << 63;
        let arrival = if bits & sign == 0 { bits | sign } else { !bits };
        Self { arrival, serial, sample }
    }
}

impl Sequence {
    /// Prompt and output tokens that are known.
    pub(crate) fn num_known(&self) -> u32 {
        self.num_prompt_tokens + self.output.len() as u32
    }

    /// Tokens, those in flight included.
    pub(crate) fn length(&self) -> u32 {
        self.num_known() + self.num_in_flight
    }

    /// Whether one more row makes sense before the next commit.
    pub(crate) fn is_plannable(&self) -> bool {
        self.length() < self.max_length && !(self.num_samples > 1 && self.num_in_flight > 0)
    }

    /// The samples that a row with `num_samples` positions to sample draws for.
    pub(crate) fn sample_range(&self, num_samples: u32) -> Range<u32> {
        if self.num_samples > 1 { 0..num_samples } else { self.sample..self.sample + num_samples }
    }

    pub(crate) fn slot(&self) -> Option<Slot> {
        match self.state {
            State::Running(slot) => Some(slot),
            State::Waiting | State::Held => None,
        }
    }

    /// Known tokens from `start` to before `end`, as the part in the prompt and the part in the output.
    pub(crate) fn tokens<'a>(&'a self, prompt: &'a [i32], start: u32, end: u32) -> (&'a [i32], &'a [i32]) {
        let split = prompt.len();
        let (start, end) = (start as usize, end as usize);
        (&prompt[start.min(split)..end.min(split)], &self.output[start.max(split) - split..end.max(split) - split])
    }

    /// Makes the hashes of the first `num_blocks` blocks known. All of them are full of known tokens.
    pub(crate) fn hash_blocks(
        &mut self,
        live: &LiveRequest,
        block_size: u32,
        num_blocks: usize,
        message: &mut Vec<u8>,
    ) {
        let num_prompt_blocks = live.prompt_hashes.len();
        while num_prompt_blocks + self.output_hashes.len() < num_blocks {
            let index = (num_prompt_blocks + self.output_hashes.len()) as u32;
            let parent = *self.output_hashes.last().or(live.prompt_hashes.last()).unwrap_or(&live.root);
            let (head, tail) = self.tokens(&live.request.prompt, index * block_size, (index + 1) * block_size);
            let hash = parent.child(head.iter().chain(tail), message);
            self.output_hashes.push(hash);
        }
    }

    /// The known hashes, from the first block on.
    pub(crate) fn hashes<'a>(&'a self, live: &'a LiveRequest) -> impl Iterator<Item = BlockHash> + 'a {
        live.prompt_hashes.iter().chain(&self.output_hashes).copied()
    }

    /// The sequence of another sample of the same prompt, which shares nothing yet.
    pub(crate) fn fork(&self, sample: u32, queue_key: QueueKey) -> Self {
        Self {
            sample,
            queue_key,
            state: State::Waiting,
            num_samples: 1,
            num_computed: 0,
            num_in_flight: 0,
            output: Vec::new(),
            blocks: Vec::new(),
            num_stored: 0,
            output_hashes: Vec::new(),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_goes_by_arrival_then_insertion_then_sample() {
        let arrivals = [f64::MIN, -2.0, -1.0, -0.0, 1e-300, 1.0, f64::MAX];
        assert!(arrivals.is_sorted_by_key(|&arrival| QueueKey::new(arrival, 0, 0)));
        assert_eq!(QueueKey::new(-0.0, 1, 1), QueueKey::new(0.0, 1, 1));
        assert!(QueueKey::new(1.0, 1, 9) < QueueKey::new(1.0, 2, 0));
        assert!(QueueKey::new(1.0, 1, 0) < QueueKey::new(1.0, 1, 1));
    }
}
