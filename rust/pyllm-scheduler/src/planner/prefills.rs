//! Prefills: chunks of prompts, which have their blocks since admission.

use crate::observer::explain::Reason;
use crate::planner::Planning;
use crate::planner::logprob_room::Share;
use crate::table::sequence::{LiveRequest, Sequence};

impl Planning<'_> {
    /// Plans chunks of the sequences that the decodes left.
    pub(super) fn prefills(&mut self) {
        let lagging = std::mem::take(&mut self.planner.lagging);
        for &key in &lagging {
            if self.budget.prefill_tokens() == 0 {
                self.cut(self.budget.reason());
                break;
            }
            let (sequence, live) = self.table.pair(key);
            if sequence.slot().is_none() {
                continue; // preempted for a decode
            }
            let fits = sequence.num_samples <= self.budget.samples;
            let num_tokens = if fits { self.next_chunk(sequence, live, Share::Prefills) } else { 0 };
            if num_tokens == 0 {
                self.cut(Reason::Samples);
            } else {
                self.plan_rows(key, num_tokens);
            }
        }
        self.planner.lagging = lagging;
    }

    /// The number of a sequence's next tokens that fit into the step, with their log-probabilities.
    pub(super) fn next_chunk(&self, sequence: &Sequence, live: &LiveRequest, share: Share) -> u32 {
        let most = self.budget.chunk(sequence, self.config);
        self.budget.logprobs.fitting(sequence, &live.request, most, share)
    }
}
