//! Log-probabilities of prompts: they go to clients as a delta of a sample, before its output. Knows nothing of sampled
//! tokens.

use crate::commit::{Commit, hears};
use crate::ids::StepId;
use crate::output::deltas::Delta;
use crate::output::logprobs::Logprobs;
use crate::request::Finish;
use crate::steps::Row;

impl Commit<'_> {
    /// Sends the log-probabilities of the step's prompt tokens that no client has yet.
    pub(super) fn tell_prompts(&mut self, step: StepId, rows: &[Row], starts: &[i32], logprobs: &Logprobs) {
        self.outbox.begin_round();
        for (index, row) in rows.iter().enumerate() {
            let range = logprobs.prompt_range(index);
            if !range.is_empty() {
                self.tell_prompt(step, index, row, starts[index], logprobs);
            }
        }
    }

    fn tell_prompt(&mut self, step: StepId, index: usize, row: &Row, num_sampled_before: i32, logprobs: &Logprobs) {
        let Some(sequence) = self.table.sequence_mut(row.sequence).filter(|one| hears(one, step)) else { return };
        let told = &logprobs.prompt_tokens[logprobs.prompt_range(index)];
        let first = sequence.num_prompt_heard;
        sequence.num_prompt_heard += told.len() as u32;
        // A preempted sequence computes its prompt again.
        let num_repeated = (sequence.num_prompt_told - first.min(sequence.num_prompt_told)) as usize;
        if num_repeated >= told.len() {
            return;
        }
        sequence.num_prompt_told = sequence.num_prompt_heard;
        let (sequence, live) = self.table.pair(row.sequence);
        let delta = Delta {
            request: live.request.id,
            sample: sequence.sample,
            offset: first as i32 + num_repeated as i32 - sequence.num_prompt_tokens as i32,
            tokens: &told[num_repeated..],
            logprobs: Some(logprobs.of_prompt(index, num_sampled_before, num_repeated)),
            embedding: &[],
            finish: Finish::None,
            cached_tokens: 0,
        };
        self.outbox.push(live.client, &delta);
    }
}
