//! Checks of a step's result before it is committed, so that a refused commit has changed nothing.

use crate::config::Config;
use crate::output::embeddings::Embeddings;
use crate::output::logprobs::{LogprobEntries, Logprobs};
use crate::steps::{Gives, Row, Step};
use crate::table::Table;
use crate::table::sequence::Sequence;

use super::hears;

/// The result of a step: row i sampled `tokens[starts[i]..starts[i + 1]]`.
#[derive(Clone, Copy)]
pub(crate) struct StepResult<'a> {
    pub(crate) starts: &'a [i32],
    pub(crate) tokens: &'a [i32],
    pub(crate) logprobs: Option<&'a Logprobs>,
    pub(crate) embeddings: Option<&'a Embeddings>,
}

impl StepResult<'_> {
    /// Errors: the first thing that does not match the step.
    pub(crate) fn check(&self, step: &Step, table: &Table, config: &Config) -> Result<(), String> {
        self.check_tokens(&step.rows, table, config)?;
        if let Some(embeddings) = self.embeddings {
            embeddings.check(step.rows.len())?;
            check_pooled(&step.rows, embeddings, table)?;
        }
        if let Some(logprobs) = self.logprobs {
            logprobs.check(step.rows.len(), self.starts, config.vocab_size)?;
            check_prompts(step, logprobs, table)?;
        }
        self.check_candidates(step, table)
    }

    /// The log-probabilities of a step's tokens that are candidates of beams.
    pub(crate) fn deciding(&self, step: &Step, table: &Table) -> Option<Logprobs> {
        let mut entries = LogprobEntries::default();
        for (index, _) in beam_rows(step, table) {
            let first = self.starts[index];
            entries.push(first as usize, self.logprobs?.of_sampled(index, first), 1);
        }
        entries.complete(self.starts[step.rows.len()] as usize);
        entries.view(0)?;
        Some(Logprobs { prompt_starts: vec![0; self.starts.len()], prompt_tokens: Vec::new(), entries })
    }

    /// Rows of ended sequences are not checked.
    fn check_tokens(&self, rows: &[Row], table: &Table, config: &Config) -> Result<(), String> {
        let Self { starts, tokens, .. } = *self;
        if starts.len() != rows.len() + 1 {
            return Err(format!("it has {} rows and the plan {}", starts.len().saturating_sub(1), rows.len()));
        }
        if starts[0] != 0 {
            return Err(format!("starts[0] is {}, and the first row starts at 0", starts[0]));
        }
        for (index, (row, range)) in rows.iter().zip(starts.windows(2)).enumerate() {
            let length = i64::from(range[1]) - i64::from(range[0]);
            let is_as_planned = length == i64::from(row.num_samples);
            if !is_as_planned && !row.may_give(length) && (length < 0 || table.sequence(row.sequence).is_some()) {
                let expected = row.expected();
                return Err(format!("row {index} has {length} tokens, and the plan asks for {expected}"));
            }
        }
        let expected = starts[rows.len()] as usize;
        if tokens.len() != expected {
            return Err(format!("it has {} tokens, and its starts end at {expected}", tokens.len()));
        }
        let vocab_size = config.vocab_size;
        let is_strange = |token: &i32| *token as u32 >= vocab_size;
        if !tokens.iter().any(is_strange) {
            return Ok(());
        }
        let row_of = |index: usize| rows[starts.partition_point(|&start| start as usize <= index) - 1];
        let mut strange = tokens.iter().enumerate().filter(|(_, token)| is_strange(token));
        match strange.find(|&(index, _)| table.sequence(row_of(index).sequence).is_some()) {
            Some((index, token)) => Err(format!("token {index} is {token}; ids are from 0 to {}", vocab_size - 1)),
            None => Ok(()),
        }
    }

    /// Errors: the row of a beam lacks candidates.
    fn check_candidates(&self, step: &Step, table: &Table) -> Result<(), String> {
        for (index, sequence) in beam_rows(step, table) {
            let of_row = |logprobs: &Logprobs| logprobs.of_sampled(index, self.starts[index]).likeliest().len();
            let given = self.logprobs.map_or(0, of_row);
            let wanted = table[sequence.request].request.num_candidates();
            if given < wanted {
                return Err(format!("row {index} is a beam's and has {given} candidates of {wanted}"));
            }
        }
        Ok(())
    }
}

/// Errors: a pooling row without an embedding.
fn check_pooled(rows: &[Row], embeddings: &Embeddings, table: &Table) -> Result<(), String> {
    let mut pooled = rows.iter().enumerate().filter(|(_, row)| row.gives == Gives::Embedding && row.num_samples > 0);
    let is_missing = |index, row: &Row| embeddings.row(index).is_empty() && table.sequence(row.sequence).is_some();
    match pooled.find(|&(index, row)| is_missing(index, row)) {
        Some((index, _)) => Err(format!("row {index} asks for an embedding and has none")),
        None => Ok(()),
    }
}

/// Errors: a row has log-probabilities of tokens that were not asked for, or are not next in its prompt.
fn check_prompts(step: &Step, logprobs: &Logprobs, table: &Table) -> Result<(), String> {
    for (index, row) in step.rows.iter().enumerate() {
        let told = &logprobs.prompt_tokens[logprobs.prompt_range(index)];
        let Some(sequence) = table.sequence(row.sequence).filter(|one| hears(one, step.id)) else { continue };
        let request = &table[sequence.request].request;
        let next = &request.prompt[sequence.num_prompt_heard as usize..];
        if !(told.is_empty() || request.prompt_logprobs && next.starts_with(told)) {
            let (number, heard) = (told.len(), sequence.num_prompt_heard);
            return Err(format!("row {index} tells of {number} tokens that do not follow the prompt's first {heard}"));
        }
    }
    Ok(())
}

/// The rows of a step with candidates of live beams.
fn beam_rows<'a>(step: &'a Step, table: &'a Table) -> impl Iterator<Item = (usize, &'a Sequence)> {
    let rows = step.rows.iter().enumerate().filter(|(_, row)| row.gives == Gives::Candidates && row.num_samples > 0);
    rows.filter_map(|(index, row)| table.sequence(row.sequence).map(|sequence| (index, sequence)))
}
