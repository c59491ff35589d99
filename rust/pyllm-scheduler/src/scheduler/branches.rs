//! Continuations that the caller chooses: drafts to be verified, and samples that go on with another token.

use crate::deltas::Delta;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::record::Input;
use crate::request::{Finish, Request, tokens_are_ids};
use crate::sequence::Sample;

use super::Scheduler;

impl Scheduler {
    /// Proposes what comes after a sample's last known token. Its next row computes the drafts too, and samples a token
    /// after each; `commit` keeps those that were sampled, so that drafts change no answer. They replace earlier ones, and
    /// end with the next token.
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

    /// One more sample of a request: it shares what another has computed, and differs from it in the last token. Its
    /// first delta holds all its tokens. Gives the sample's index.
    ///
    /// Errors: `UnknownRequest`, `Sample`, `Request` for what is no token id.
    pub fn fork(&mut self, client: ClientId, request: RequestId, sample: u32, last_token: i32) -> Result<u32> {
        let origin = self.find_sample(client, request, sample)?;
        tokens_are_ids("last_token", &[last_token], self.config.vocab_size)?;
        let sequence = &self.sequences[origin];
        let name = sequence.request;
        let new = self.requests[name].samples.len() as u32;
        let problem = if sequence.num_in_flight > 0 || sequence.num_samples > 1 || sequence.output.is_empty() {
            Some("has no known last token to differ from; fork after a commit, with no step of it in flight")
        } else if new >= Request::MAX_SAMPLES {
            Some("cannot fork: the request has as many samples as one can have")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::Sample { request, sample, problem });
        }
        self.record(|| Input::Fork { client, request, sample, last_token });
        let live = &mut self.requests[name];
        live.samples.push(Sample::Finished); // until `fork_sample` names its sequence
        live.num_unfinished += 1;
        let key = self.fork_sample(origin, new);
        let sequence = &mut self.sequences[key];
        if let Some(last) = sequence.output.last_mut() {
            *last = last_token;
        }
        // Its origin may have had a name for the block that its own last token fills.
        let num_before = ((sequence.num_known() - 1) / self.config.block_size) as usize;
        sequence.output_hashes.truncate(num_before.saturating_sub(self.requests[name].prompt_hashes.len()));
        self.outbox.begin_round();
        let live = &self.requests[name];
        let delta = Delta {
            request,
            sample: new,
            offset: 0,
            tokens: &sequence.output,
            logprobs: None,
            embedding: &[],
            finish: Finish::None,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
        };
        self.outbox.push(live.client, &delta);
        Ok(new)
    }

    fn find_sample(
        &self,
        client: ClientId,
        request: RequestId,
        sample: u32,
    ) -> Result<crate::arena::Key<crate::sequence::Sequence>> {
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
