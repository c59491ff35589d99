//! Log-probabilities of a step. It carries them all in one message, 12 bytes each, so only so many fit. Streams leave half
//! of the room to prompts, and those a quarter of it to what is admitted: none of the three stops the others.

use crate::arena::Key;
use crate::config::Config;
use crate::request::Request;
use crate::sequence::Sequence;

use super::Scheduler;
use super::planning::Planning;

/// Whose room it is, each with what it leaves to those after it, in quarters.
#[derive(Clone, Copy)]
pub(super) enum Share {
    Decodes = 2,
    Prefills = 1,
    Admissions = 0,
}

/// What a step has left.
pub(super) struct LogprobRoom {
    quarter: u64,
    left: u64,
    /// Most that a token may have for its decodes to need no room: all slots together have less than half of it.
    narrow: u64,
}

impl LogprobRoom {
    pub(super) fn new(config: &Config) -> Self {
        let quarter = config.most_logprobs();
        Self { quarter, left: 4 * quarter, narrow: quarter / u64::from(config.max_num_seqs.max(1)) }
    }

    /// Whether it takes turns with others like it, so that other streams need none.
    fn is_wide(&self, request: &Request) -> bool {
        u64::from(request.num_logprobs) > self.narrow
    }

    /// Tokens that have log-probabilities among the next `num_tokens`, those sampled after them included.
    fn scored(&self, sequence: &Sequence, request: &Request, num_tokens: u32) -> u64 {
        let (start, end) = (sequence.num_computed, sequence.num_computed + num_tokens);
        let last = sequence.num_prompt_tokens.saturating_sub(1);
        let of_prompt = if request.prompt_logprobs { end.min(last) - start.min(last) } else { 0 };
        let samples = if self.is_wide(request) && end >= sequence.length() { sequence.num_samples } else { 0 };
        u64::from(of_prompt + samples)
    }

    fn room(&self, request: &Request, share: Share) -> u64 {
        self.left.saturating_sub(share as u64 * self.quarter) / u64::from(request.num_logprobs.max(1))
    }

    /// How many of the next `most` tokens this share has room for. A prompt leaves as much to the next one.
    fn fitting(&self, sequence: &Sequence, request: &Request, most: u32, share: Share) -> u32 {
        let room = self.room(request, share);
        let half = u32::try_from(room.div_ceil(2)).unwrap_or(u32::MAX);
        let most = if request.prompt_logprobs { most.min(half) } else { most };
        let fits = |num_tokens: &u32| self.scored(sequence, request, *num_tokens) <= room;
        [most, most.saturating_sub(1)].into_iter().find(fits).unwrap_or(0)
    }

    /// A row of so many tokens is in the step.
    pub(super) fn take(&mut self, sequence: &Sequence, request: &Request, num_tokens: u32) {
        let scored = self.scored(sequence, request, num_tokens);
        self.left = self.left.saturating_sub(scored * u64::from(request.num_logprobs));
    }
}

impl Scheduler {
    /// Chooses the streams of many log-probabilities that may have a row, into `wide`: first those that waited longest.
    pub(super) fn choose_wide(&mut self, planning: &Planning) {
        let mut wide = std::mem::take(&mut self.wide);
        wide.clear();
        wide.extend(self.running.iter().copied().filter(|&key| {
            let sequence = &self.sequences[key];
            let is_decode = sequence.length() == sequence.num_computed + 1 && self.may_have_row(sequence);
            is_decode && self.is_wide(key, planning) && planning.turn.admits(sequence.request)
        }));
        wide.sort_by_key(|&key| self.sequences[key].last_step);
        let mut left = Share::Decodes as u64 * planning.logprobs.quarter;
        wide.retain(|&key| {
            let request = &self.requests[self.sequences[key].request].request;
            let rest = left.checked_sub(u64::from(request.num_logprobs));
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        self.wide = wide;
    }

    /// Whether a stream takes turns with others; those that `choose_wide` chose have theirs.
    pub(super) fn is_wide(&self, key: Key<Sequence>, planning: &Planning) -> bool {
        planning.logprobs.is_wide(&self.requests[self.sequences[key].request].request)
    }

    /// Whether there is room for the first tokens of what waits, wherever it begins.
    pub(super) fn may_begin(&self, sequence: &Sequence, planning: &Planning) -> bool {
        let request = &self.requests[sequence.request].request;
        let is_bounded = request.prompt_logprobs || planning.logprobs.is_wide(request);
        !is_bounded || planning.logprobs.room(request, Share::Admissions) >= u64::from(sequence.num_samples)
    }

    /// How many of a sequence's next `most` tokens have room for their log-probabilities.
    pub(super) fn fitting(&self, sequence: &Sequence, most: u32, share: Share, planning: &Planning) -> u32 {
        let request = &self.requests[sequence.request].request;
        planning.logprobs.fitting(sequence, request, most, share)
    }
}
