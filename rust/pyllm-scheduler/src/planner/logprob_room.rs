//! The room of a step for log-probabilities. It carries them all in one message, 12 bytes each. Streams leave half of the
//! room to prompts, and those a quarter of it to admitted requests: none of the three stops the others.

use crate::config::Config;
use crate::request::Request;
use crate::table::sequence::Sequence;

/// The parts of the room, each with the quarters that it leaves to the parts after it.
#[derive(Clone, Copy)]
pub(crate) enum Share {
    Decodes = 2,
    Prefills = 1,
    Admissions = 0,
}

/// The room that is left.
pub(crate) struct LogprobRoom {
    quarter: u64,
    left: u64,
    /// Most that a token may have for its decodes to need no room: all slots together have less than half of it.
    narrow: u64,
}

impl LogprobRoom {
    pub(crate) fn new(config: &Config) -> Self {
        let quarter = config.most_logprobs();
        Self { quarter, left: 4 * quarter, narrow: quarter / u64::from(config.max_num_seqs.max(1)) }
    }

    /// The part of the decodes.
    pub(crate) fn of_decodes(&self) -> u64 {
        Share::Decodes as u64 * self.quarter
    }

    /// Whether it takes turns with others like it, so that other streams need none.
    pub(crate) fn is_wide(&self, request: &Request) -> bool {
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

    /// Tokens of this request that a part has room for.
    pub(crate) fn room(&self, request: &Request, share: Share) -> u64 {
        self.left.saturating_sub(share as u64 * self.quarter) / u64::from(request.num_logprobs.max(1))
    }

    /// The number of the next `most` tokens that a part has room for. A prompt leaves as much to the next one.
    pub(crate) fn fitting(&self, sequence: &Sequence, request: &Request, most: u32, share: Share) -> u32 {
        let room = self.room(request, share);
        let half = u32::try_from(room.div_ceil(2)).unwrap_or(u32::MAX);
        let most = if request.prompt_logprobs { most.min(half) } else { most };
        let fits = |num_tokens: &u32| self.scored(sequence, request, *num_tokens) <= room;
        [most, most.saturating_sub(1)].into_iter().find(fits).unwrap_or(0)
    }

    /// A row of so many tokens is in the step.
    pub(crate) fn take(&mut self, sequence: &Sequence, request: &Request, num_tokens: u32) {
        let scored = self.scored(sequence, request, num_tokens);
        self.left = self.left.saturating_sub(scored * u64::from(request.num_logprobs));
    }
}
