//! Drafts: proposed tokens that a step verifies. Those equal to the sampled tokens are accepted. A sequence that runs
//! alone proposes some itself, by prompt lookup: a step of a few tokens takes hardly longer than one of one token.
//! Beside other sequences drafts would cost them time.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::prompt_lookup;
use crate::recorder::Input;
use crate::request::tokens_are_ids;
use crate::sequence::{Beam, Sample, Sequence};

use super::Scheduler;

impl Scheduler {
    /// Proposes tokens after a sample's last known one. Its next row computes the drafts too, and samples a token after
    /// each; `commit` keeps those that were sampled, so that drafts change no answer. They replace earlier drafts, and
    /// are dropped with the next token.
    ///
    /// Errors: `UnknownRequest`, `Sample`, `Request` for an invalid token id.
    pub fn propose(&mut self, client: ClientId, request: RequestId, sample: u32, drafts: &[i32]) -> Result<()> {
        let key = self.find_sample(client, request, sample)?;
        tokens_are_ids("drafts", drafts, self.config.vocab_size)?;
        let sequence = &self.sequences[key];
        if sequence.num_in_flight > 0 || sequence.num_samples > 1 || sequence.output.is_empty() {
            let problem =
                "has no known last token to propose after; propose after a commit, with no step of it in flight";
            return Err(Error::Sample { request, sample, problem });
        }
        self.record(|| Input::Propose { client, request, sample, drafts: drafts.to_vec() });
        drafts.clone_into(&mut self.sequences[key].drafts);
        Ok(())
    }

    /// Proposes drafts to a sequence before its next row, if it runs alone and has none from the caller. True: it
    /// should have no row before the one in flight is committed, as drafts are likely then.
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

    fn find_sample(&self, client: ClientId, request: RequestId, sample: u32) -> Result<Key<Sequence>> {
        let live = &self.requests[self.find(client, request)?];
        match live.samples.get(sample as usize) {
            _ if live.search.is_some() => {
                Err(Error::Sample { request, sample, problem: "is a beam, which goes on by its candidates alone" })
            }
            Some(Sample::Live(key)) => Ok(*key),
            Some(Sample::Unforked) => Err(Error::Sample { request, sample, problem: "has not begun" }),
            Some(Sample::Finished) | None => Err(Error::Sample { request, sample, problem: "has ended or was never" }),
        }
    }
}
