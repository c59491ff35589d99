//! The budget of a step: tokens, positions to sample, log-probabilities, and prefill tokens within the targets of
//! running streams. Knows no block.

use crate::config::Config;
use crate::observer::explain::Reason;
use crate::planner::logprob_room::LogprobRoom;
use crate::planner::share::StepShare;
use crate::table::sequence::Sequence;

pub(crate) struct Budget {
    /// Remaining tokens.
    pub(super) tokens: u32,
    /// Number of decodes that this step may have.
    pub(super) share: StepShare,
    /// Remaining prefill tokens, by this step's share or the targets of running streams; and which of both.
    prefill_room: u32,
    prefill_bound: Reason,
    /// Remaining positions to sample. Requests with many samples would otherwise fill a step with `max_num_seqs`
    /// squared positions; twice `max_num_seqs` leaves room for one of them beside all decodes, so none waits for ever.
    pub(super) samples: u32,
    pub(super) logprobs: LogprobRoom,
    /// The shortest inter-token target of its streams, and the target of streams without one of their own.
    inter_token_target: f64,
    default_target: f64,
}

impl Budget {
    pub(super) fn new(config: &Config) -> Self {
        let default_target = config.inter_token_target;
        Self {
            tokens: config.max_num_batched_tokens,
            share: StepShare::WHOLE,
            prefill_room: u32::MAX,
            prefill_bound: Reason::InterTokenTarget,
            samples: 2 * config.max_num_seqs,
            logprobs: LogprobRoom::new(config),
            inter_token_target: f64::INFINITY,
            default_target: if default_target > 0.0 { default_target } else { f64::INFINITY },
        }
    }

    /// Remaining tokens for prefills.
    pub(super) fn prefill_tokens(&self) -> u32 {
        self.tokens.min(self.prefill_room)
    }

    /// The reason for which a prefill gets no tokens.
    pub(super) fn reason(&self) -> Reason {
        if self.tokens == 0 { Reason::Budget } else { self.prefill_bound }
    }

    /// Respects the target of a stream that waits for the step's end, with or without a row in it.
    pub(super) fn heed_target(&mut self, sequence: &Sequence) {
        let target = sequence.tpot_target.unwrap_or(self.default_target);
        self.inter_token_target = self.inter_token_target.min(target);
    }

    /// Limits prefills by the targets of the step's streams, and by the step's share of all prefill tokens. At least
    /// one block is always computed. `tokens_within` gives the prefill tokens that a step of so many seconds has time
    /// for. In a pipeline a token takes as many steps as there are stages.
    pub(super) fn bound_prefills(&mut self, config: &Config, tokens_within: impl FnOnce(f64) -> u32) {
        (self.prefill_room, self.prefill_bound) = (self.share.prefill_tokens, Reason::Pipeline);
        if self.inter_token_target.is_finite() {
            let target = self.inter_token_target / f64::from(config.pipeline_parallel_size);
            let num_tokens = tokens_within(target).max(config.block_size);
            if num_tokens <= self.prefill_room {
                (self.prefill_room, self.prefill_bound) = (num_tokens, Reason::InterTokenTarget);
            }
        }
    }

    /// Tokens of a prefilling sequence that this step may compute. With `whole_prompts` no target of a stream bounds
    /// them.
    pub(super) fn chunk(&self, sequence: &Sequence, config: &Config) -> u32 {
        let lag = sequence.length() - sequence.num_computed;
        if config.whole_prompts {
            return if lag <= self.tokens { lag } else { 0 };
        }
        let cap = config.long_prefill_token_threshold;
        let num_placed = sequence.num_placed - sequence.num_computed;
        lag.min(self.prefill_tokens()).min(if cap == 0 { u32::MAX } else { cap }).min(num_placed)
    }

    /// Takes a row off the budget.
    pub(super) fn take(&mut self, num_tokens: u32, num_samples: u32, is_decode: bool) {
        self.tokens -= num_tokens;
        self.samples -= num_samples;
        if !is_decode {
            self.prefill_room = self.prefill_room.saturating_sub(num_tokens);
        }
    }
}
