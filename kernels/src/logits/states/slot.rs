//! One slot's rules and tokens, and the count of each token in its output. Knows no other slot.

use std::sync::Arc;

use super::StateError;
use super::thinking::{Output, Stage, Thinking};

/// The parameters of a request that depend on its tokens, or change logits at every position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    /// 1: none.
    pub(crate) repetition_penalty: f32,
    /// Tokens, each with a number to add to its logit.
    pub(crate) bias: Vec<(i32, f32)>,
    /// The last token of each is banned after the others.
    pub(crate) bad_words: Vec<Vec<i32>>,
    /// Number of output tokens before which `stop_token_ids` are banned.
    pub(crate) min_tokens: usize,
    pub(crate) stop_token_ids: Vec<i32>,
    pub(crate) thinking: Thinking,
}

impl Rules {
    /// The same rules without bans of invalid token ids, with biases by ascending id.
    pub(super) fn checked(mut self, vocabulary: usize) -> Result<Self, StateError> {
        for (what, value) in
            [("the presence penalty", self.presence_penalty), ("the frequency penalty", self.frequency_penalty)]
        {
            if !value.is_finite() {
                return Err(StateError::Number { what, value, allowed: "finite" });
            }
        }
        let value = self.repetition_penalty;
        if !value.is_finite() || value <= 0.0 {
            return Err(StateError::Number { what: "the repetition penalty", value, allowed: "finite and above 0" });
        }
        let is_token = |token: i32| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        for &(token, value) in &self.bias {
            if !is_token(token) {
                return Err(StateError::Token { what: "a bias", token, vocabulary });
            }
            if !value.is_finite() {
                return Err(StateError::Number { what: "a bias", value, allowed: "finite" });
            }
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(StateError::NoTokens { what: "a bad word" });
        }
        if self.thinking.starts.iter().chain(&self.thinking.ends).any(Vec::is_empty) {
            return Err(StateError::NoTokens { what: "a start or an end of reasoning" });
        }
        if let Some(&token) = self.thinking.ends.iter().flatten().find(|&&token| !is_token(token)) {
            return Err(StateError::Token { what: "an end of reasoning", token, vocabulary });
        }
        self.bias.sort_by_key(|&(token, _)| token);
        self.bad_words.retain(|word| word.iter().all(|&token| is_token(token)));
        self.stop_token_ids.retain(|&token| is_token(token));
        Ok(self)
    }

    /// Whether counts of tokens in the output matter.
    pub(super) fn count_output(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repeat()
    }

    /// Whether occurrences of tokens anywhere matter.
    #[expect(clippy::float_cmp, reason = "exactly 1 changes nothing")]
    fn repeat(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// The number to subtract from the logit of a token with this count in the output.
    #[expect(clippy::cast_precision_loss, reason = "a count beyond 2^24 is as good as its neighbour")]
    pub(super) fn subtracted(&self, count: u32) -> f32 {
        if count > 0 { self.frequency_penalty * count as f32 + self.presence_penalty } else { 0.0 }
    }
}

/// Copies share their rules and prompt.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(super) rules: Arc<Rules>,
    prompt: Arc<Prompt>,
    output: Vec<i32>,
    /// Stage of the reasoning after the output.
    stage: Stage,
    /// Empty if no rule needs them.
    pub(super) counts: Counts,
}

struct Prompt {
    tokens: Vec<i32>,
    /// A bit for each token of the vocabulary; empty if no rule needs it.
    distinct: Vec<u64>,
}

/// Counts of the output's tokens; also of the prompt's, as 0, if those matter.
#[derive(Clone, Default)]
pub(super) struct Counts {
    /// Ascending.
    pub(super) ids: Vec<i32>,
    pub(super) in_output: Vec<u32>,
}

impl Slot {
    /// The tokens must be below the vocabulary size, and at least as many as the prompt's.
    pub(super) fn new(rules: Rules, tokens: &[i32], num_prompt_tokens: usize, vocabulary: usize) -> Self {
        let (prompt, output) = tokens.split_at(num_prompt_tokens);
        let distinct = if rules.repeat() { bits_of(prompt, vocabulary) } else { Vec::new() };
        let counts = if rules.count_output() { Counts::new(&distinct, output, vocabulary) } else { Counts::default() };
        Self {
            stage: rules.thinking.stage(prompt, output),
            rules: Arc::new(rules),
            prompt: Arc::new(Prompt { tokens: prompt.to_vec(), distinct }),
            output: output.to_vec(),
            counts,
        }
    }

    /// Number of known tokens.
    pub(crate) fn len(&self) -> usize {
        self.prompt.tokens.len() + self.output.len()
    }

    pub(super) fn output(&self) -> &[i32] {
        &self.output
    }

    /// The token that reasoning beyond its budget forces after the output and these drafts.
    pub(super) fn forced(&self, drafts: &[i32]) -> Option<i32> {
        let (thinking, after) = (&self.rules.thinking, |length| Output(&self.output, &drafts[..length]));
        let stage = (1..=drafts.len()).fold(self.stage, |stage, length| thinking.advance(stage, after(length)));
        thinking.forced(stage, after(drafts.len()))
    }

    /// The known tokens from a position on.
    pub(crate) fn tokens_from(&self, start: usize) -> Vec<i32> {
        let prompt = &self.prompt.tokens;
        let (in_prompt, in_output) = (start.min(prompt.len()), start.saturating_sub(prompt.len()));
        [&prompt[in_prompt..], &self.output[in_output.min(self.output.len())..]].concat()
    }

    pub(super) fn append(&mut self, token: i32) {
        self.output.push(token);
        self.stage = self.rules.thinking.advance(self.stage, Output(&self.output, &[]));
        if self.rules.count_output() {
            self.counts.add(token);
        }
    }

    /// Add the tokens of the positions from `first` on; where the known output differs, it is dropped from there on.
    /// False if a token is unknown (-1) and not known before.
    pub(super) fn learn(&mut self, first: usize, tokens: &[i32]) -> bool {
        let num_prompt_tokens = self.prompt.tokens.len();
        for (position, &token) in (first..).zip(tokens).skip(num_prompt_tokens.saturating_sub(first)) {
            let place = position - num_prompt_tokens;
            match self.output.get(place) {
                Some(&known) if token < 0 || token == known => continue,
                Some(_) => self.truncate(place),
                None if token < 0 => return false,
                None => {}
            }
            self.append(token);
        }
        true
    }

    fn truncate(&mut self, num_output_tokens: usize) {
        let forgotten = self.output.split_off(num_output_tokens);
        self.stage = self.rules.thinking.stage(&self.prompt.tokens, &self.output);
        if self.rules.count_output() {
            for token in forgotten {
                self.counts.remove(token, &self.prompt.distinct);
            }
        }
    }
}

impl Counts {
    fn new(prompt: &[u64], output: &[i32], vocabulary: usize) -> Self {
        let mut in_output = vec![0_u32; vocabulary];
        for &token in output {
            in_output[token as usize] += 1;
        }
        let stands = |&token: &usize| in_output[token] > 0 || has_bit(prompt, token);
        let ids: Vec<i32> = (0..vocabulary).filter(stands).map(|token| token as i32).collect();
        let in_output = ids.iter().map(|&id| in_output[id as usize]).collect();
        Self { ids, in_output }
    }

    fn add(&mut self, token: i32) {
        match self.ids.binary_search(&token) {
            Ok(place) => self.in_output[place] += 1,
            Err(place) => {
                self.ids.insert(place, token);
                self.in_output.insert(place, 1);
            }
        }
    }

    fn remove(&mut self, token: i32, prompt: &[u64]) {
        let place = self.ids.binary_search(&token).expect("what stands in the output is counted");
        self.in_output[place] -= 1;
        if self.in_output[place] == 0 && !has_bit(prompt, token as usize) {
            self.ids.remove(place);
            self.in_output.remove(place);
        }
    }
}

fn bits_of(tokens: &[i32], vocabulary: usize) -> Vec<u64> {
    let mut bits = vec![0; vocabulary.div_ceil(64)];
    for &token in tokens {
        bits[token as usize / 64] |= 1 << (token % 64);
    }
    bits
}

fn has_bit(bits: &[u64], index: usize) -> bool {
    bits.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}
