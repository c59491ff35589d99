//! Drafts: tokens that a step verifies, and keeps as far as they are what it samples. A sequence that runs alone
//! proposes some to itself: a step of a few of its tokens takes hardly longer than one of one token. Beside others they
//! would cost those time.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::prompt_lookup;
use crate::recorder::Input;
use crate::request::tokens_are_ids;
use crate::sequence::{Beam, Sample, Sequence};

use super::Scheduler;

impl Scheduler {
    /// Proposes what comes after a sample's last known token. Its next row computes the drafts too, and samples a token
    /// after each; `commit` keeps those that were sampled, so that drafts change no answer. They replace earlier ones,
    /// and end with the next token.
    ///
    /// Errors: `UnknownRequest`, `Sample`, `Request` for what is no token id.
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

    /// Proposes drafts to a sequence that is to have a row, if it runs alone and nobody has proposed others. True: it
    /// is to have none before its row in flight is committed, as there will probably be drafts for the next one then.
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
