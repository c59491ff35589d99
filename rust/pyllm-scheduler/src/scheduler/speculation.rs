//! A sequence that runs alone proposes drafts to itself: a step of a few of its tokens takes hardly longer than one of
//! one token, and what is accepted takes no step. Beside others they would cost those time.

use crate::arena::Key;
use crate::prompt_lookup;
use crate::sequence::{Beam, Sequence};

use super::Scheduler;

impl Scheduler {
    /// Proposes drafts to a sequence that is to have a row, if it runs alone and nobody has proposed others. True: it is
    /// to have none before its row in flight is committed, as there will probably be drafts for the next one then.
    pub(super) fn speculate(&mut self, key: Key<Sequence>) -> bool {
        if self.config.num_speculative_tokens == 0 || self.running.len() > 1 {
            return false;
        }
        let sequence = &mut self.sequences[key];
        if sequence.is_stateful || sequence.beam != Beam::None || !sequence.drafts.is_empty() {
            return false;
        }
        let most = self.config.num_speculative_tokens.min(sequence.most_drafts()) as usize;
        let request = &self.requests[sequence.request].request;
        prompt_lookup::look_up(&request.prompt, &sequence.output, most, &mut sequence.drafts);
        let stop = sequence.drafts.iter().position(|token| request.stop_token_ids.binary_search(token).is_ok());
        sequence.drafts.truncate(stop.map_or(most, |last| last + 1));
        if sequence.num_in_flight == 0 || sequence.drafts.is_empty() {
            return false;
        }
        sequence.drafts.clear(); // They would follow another token than the next row's.
        true
    }
}
