//! A bound on a slot's reasoning: where it stands after an output, and the token that must come next. Knows no logits.

/// Ends reasoning that has used up its budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Thinking {
    /// So many tokens of reasoning may come.
    pub(crate) budget: usize,
    /// One of these ends the prompt or begins the output if the model reasons; none: it reasons from the beginning.
    pub(crate) starts: Vec<Vec<i32>>,
    /// Any of these ends reasoning, and the first is what is forced. None: there is no bound.
    pub(crate) ends: Vec<Vec<i32>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// The output is shorter than a start that it may become.
    Before,
    /// The output is reasoning from here on.
    Within(usize),
    /// It has ended, or there is none.
    After,
}

/// An output: what is known of it, and drafts behind that.
#[derive(Clone, Copy)]
pub(super) struct Output<'a>(pub(super) &'a [i32], pub(super) &'a [i32]);

impl Output<'_> {
    fn len(self) -> usize {
        self.0.len() + self.1.len()
    }

    fn ends_with(self, tokens: &[i32]) -> bool {
        let backwards = self.1.iter().rev().chain(self.0.iter().rev());
        tokens.len() <= self.len() && tokens.iter().rev().eq(backwards.take(tokens.len()))
    }
}

impl Thinking {
    /// The stage after a prompt and all of an output.
    pub(super) fn stage(&self, prompt: &[i32], output: &[i32]) -> Stage {
        if self.ends.is_empty() {
            return Stage::After;
        }
        let opened = self.starts.is_empty() || self.starts.iter().any(|start| prompt.ends_with(start));
        let first = if opened { Stage::Within(0) } else { Stage::Before };
        (1..=output.len()).fold(first, |stage, length| self.advance(stage, Output(&output[..length], &[])))
    }

    /// The stage after an output that was at this stage before its last token.
    pub(super) fn advance(&self, stage: Stage, output: Output<'_>) -> Stage {
        match stage {
            Stage::Before => {
                let mut possible = self
                    .starts
                    .iter()
                    .filter(|start| start.len() >= output.len() && output.ends_with(&start[..output.len()]));
                match possible.clone().any(|start| start.len() == output.len()) {
                    true => Stage::Within(output.len()),
                    false if possible.next().is_some() => Stage::Before,
                    false => Stage::After,
                }
            }
            Stage::Within(since) => {
                let num_tokens = output.len() - since;
                let has_ended = self.ends.iter().any(|end| end.len() <= num_tokens && output.ends_with(end));
                if has_ended { Stage::After } else { stage }
            }
            Stage::After => Stage::After,
        }
    }

    /// The token that must follow an output at this stage: an end that has begun is completed.
    pub(super) fn forced(&self, stage: Stage, output: Output<'_>) -> Option<i32> {
        let Stage::Within(since) = stage else { return None };
        let num_tokens = output.len() - since;
        if num_tokens < self.budget {
            return None;
        }
        let begun = |end: &[i32]| {
            (1..end.len()).rev().find(|&length| length <= num_tokens && output.ends_with(&end[..length])).unwrap_or(0)
        };
        // The last of equal ones would be taken.
        let next = self.ends.iter().rev().map(|end| (begun(end), end)).max_by_key(|&(length, _)| length);
        next.map(|(length, end)| end[length])
    }
}

#[cfg(test)]
pub(super) mod tests;
