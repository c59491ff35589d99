//! A request as its client sends it, and the ways in which its samples end. Knows nothing of blocks and steps.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::kv_layout::KvLayout;

/// A prompt and its parameters. `(client, id)` is its key; its `n` samples are continuations of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// The client that sent it.
    pub client: ClientId,
    /// The client's id for it.
    pub id: RequestId,
    /// A readable name for logs; no decision depends on it.
    pub name: String,
    /// Token ids below `Config::vocab_size`, at least one.
    pub prompt: Vec<i32>,
    /// Samples, from 1 to `Request::MAX_SAMPLES` and `Config::max_num_seqs`.
    #[serde(default = "one")]
    pub n: u32,
    /// The seed of all its random numbers.
    pub seed: u64,
    /// Output tokens per sample, including those in `outputs`; at least 1, but 0 for a pooling request.
    pub max_tokens: u32,
    /// Stop tokens do not end a sample before this many output tokens.
    pub min_tokens: u32,
    /// Tokens that end a sample. They are part of the output.
    pub stop_token_ids: Vec<i32>,
    /// Opaque sampling parameters for the worker, passed on when a slot is initialised.
    pub sampling: Vec<u8>,
    /// Whether the worker chooses its tokens by all tokens before: it gets them when a slot is initialised, and may
    /// yield none for a row, or more than planned.
    pub stateful: bool,
    /// Whether it asks for log-probabilities of the prompt, so that the whole prompt is computed.
    pub prompt_logprobs: bool,
    /// Log-probabilities that come with a token at most, its own included; 0: none.
    pub num_logprobs: u32,
    /// Beams of a beam search, of which the best sequences become the `n` samples; 0: samples are drawn.
    pub beam_width: u32,
    /// The exponent of a beam's length, by which its log-probability is divided.
    #[serde(default = "neutral_penalty")]
    pub length_penalty: f64,
    /// Kind of embedding of the prompt, in place of output: the request ends with the step that computes the prompt's
    /// last token.
    pub pooling: Pooling,
    /// Earlier output of each of the `n` samples, to resume. Empty for a fresh request.
    pub outputs: Vec<Output>,
    /// Arrival time, in seconds of `Scheduler::schedule`'s clock. First come, first served orders by it.
    pub arrival: f64,
    /// Time at which it ends unfinished, waiting or running, in seconds of the same clock.
    pub deadline: Option<f64>,
    /// Target for the time to first token (TTFT), in seconds from `arrival`.
    pub ttft_target: Option<f64>,
    /// Target for the time per output token (TPOT), in seconds.
    pub tpot_target: Option<f64>,
    /// Lower runs earlier under the policies that use it; first come, first served does not.
    pub priority: i32,
    /// Its rank under `PolicyName::Custom`: lower runs earlier.
    pub policy_key: f64,
    /// The tenant that is charged for it. Blocks are never shared across tenants.
    pub tenant: String,
    /// Requests share cached blocks only with requests that have the same salt.
    pub cache_salt: String,
    /// The adapter's name and the digest of its weights, or empty. Blocks are never shared across adapters.
    pub adapter: String,
    /// The caller's number of the adapter: one for each text of `adapter`, and 0 without one.
    pub adapter_number: u32,
    /// Retention of its blocks in an external store.
    pub kv_cache_retention: Retention,
}

fn one() -> u32 {
    1
}

fn neutral_penalty() -> f64 {
    1.0
}

/// The kind of a prompt's embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// No embedding.
    #[default]
    None,
    /// The last token's hidden state.
    Last,
    /// The mean of all hidden states; the worker sums them from the first token on.
    Mean,
}

/// Retention of a block in an external store, from the shortest to the longest. If several requests ask for one block,
/// the longest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retention {
    /// Blocks are not saved.
    None,
    /// The default of the connector's settings.
    #[default]
    Default,
    /// Longer than the default.
    Long,
}

impl Retention {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Default => "default",
            Self::Long => "long",
        }
    }
}

/// Earlier output of one sample of a resumed request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The tokens so far.
    pub tokens: Vec<i32>,
    /// Whether this sample is complete.
    pub finished: bool,
}

/// The finish reason of a sample; the numbers go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Finish {
    /// Not finished.
    None = 0,
    /// A stop token.
    Stop = 1,
    /// `max_tokens` or `max_model_len`.
    Length = 2,
    /// Aborted by its client.
    Abort = 3,
    /// A failure of the core; never set here.
    Error = 4,
    /// Its deadline.
    Deadline = 5,
}

impl Finish {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Deadline => "deadline",
        }
    }
}

impl Request {
    /// Maximum of `n`.
    pub const MAX_SAMPLES: u32 = 16_384;

    /// Prompt and output tokens at which a sample ends. The one row of a pooling request is where a first token would
    /// be sampled.
    pub(crate) fn max_length(&self, config: &Config) -> u32 {
        if self.pools() {
            return self.prompt.len() as u32 + 1;
        }
        (self.prompt.len() as u32).saturating_add(self.max_tokens).min(config.max_model_len)
    }

    /// Number of a beam's likeliest next tokens that are candidates.
    pub(crate) fn num_candidates(&self) -> usize {
        2 * self.beam_width as usize
    }

    /// Whether the worker must compute the whole prompt, without cached blocks.
    pub(crate) fn needs_whole_prompt(&self) -> bool {
        self.prompt_logprobs || self.pooling == Pooling::Mean
    }

    /// Whether it is a pooling request.
    pub(crate) fn pools(&self) -> bool {
        self.pooling != Pooling::None
    }

    /// Errors: the first problem that makes the request impossible, whatever else runs.
    pub(crate) fn validate(&self, config: &Config, layout: &KvLayout) -> Result<()> {
        self.validate_fields(config)?;
        // Without output the prompt may have the maximum length.
        if self.prompt.len() + usize::from(!self.pools()) > config.max_model_len as usize {
            let num_tokens = self.prompt.len();
            return Err(Error::PromptTooLong { num_tokens, max_model_len: config.max_model_len });
        }
        self.validate_pooling()?;
        self.validate_outputs(config)?;
        self.validate_beams(config)?;
        // The last token is never computed, so its keys and values need no place.
        let num_tokens = self.max_length(config) - 1;
        let needed = layout.most_blocks(self.prompt.len() as u32, num_tokens, self.beam_width.max(1));
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        if needed > config.num_unpinned_blocks() {
            return Err(Error::NeverFits {
                num_prompt_tokens: self.prompt.len() as u32,
                max_tokens: self.max_tokens,
                beam_width: self.beam_width,
                num_tokens,
                needed,
                num_blocks: config.num_blocks,
                max_pinned_blocks: config.max_pinned_blocks,
                block_size: config.block_size,
            });
        }
        Ok(())
    }

    fn validate_fields(&self, config: &Config) -> Result<()> {
        if self.prompt.is_empty() {
            return refuse("the prompt is empty; give at least one token".to_owned());
        }
        tokens_are_ids("prompt", &self.prompt, config.vocab_size)?;
        if !(1..=Self::MAX_SAMPLES).contains(&self.n) {
            return refuse(format!("n must be from 1 to {}, not {}", Self::MAX_SAMPLES, self.n));
        }
        // The prompt's last row needs as many logits rows as there are samples, all in one step.
        if self.n > config.max_num_seqs {
            return refuse(format!(
                "n is {}, and max_num_seqs is {}: one step takes the first tokens of all samples; lower n, or raise \
                 max_num_seqs",
                self.n, config.max_num_seqs
            ));
        }
        let (num_logprobs, most) = (u64::from(self.n) * u64::from(self.num_logprobs), config.most_logprobs());
        if num_logprobs > most {
            return refuse(format!(
                "n is {} and each first token comes with {} log-probabilities, {num_logprobs} together, and a step \
                 carries {most} of one request; lower either",
                self.n, self.num_logprobs
            ));
        }
        if self.max_tokens == 0 && !self.pools() {
            return refuse("max_tokens must be at least 1".to_owned());
        }
        if self.min_tokens > self.max_tokens {
            return refuse(format!("min_tokens {} is above max_tokens {}", self.min_tokens, self.max_tokens));
        }
        self.validate_adapter(config)?;
        finite("arrival", self.arrival)?;
        finite("policy_key", self.policy_key)?;
        finite("length_penalty", self.length_penalty)?;
        self.deadline.map_or(Ok(()), |seconds| finite("deadline", seconds))?;
        self.ttft_target.map_or(Ok(()), |seconds| positive("ttft_target", seconds))?;
        self.tpot_target.map_or(Ok(()), |seconds| positive("tpot_target", seconds))
    }

    fn validate_adapter(&self, config: &Config) -> Result<()> {
        let (adapter, number) = (&self.adapter, self.adapter_number);
        if adapter.is_empty() != (number == 0) {
            return refuse(format!(
                "adapter is {adapter:?} and adapter_number {number}; give a text and a number above 0, or neither"
            ));
        }
        if number > 0 && config.max_loras == 0 {
            return refuse(format!("adapter_number is {number}, and max_loras is 0: there is no room for adapters"));
        }
        Ok(())
    }

    fn validate_pooling(&self) -> Result<()> {
        let others = [
            ("max_tokens", self.max_tokens > 0),
            ("n", self.n > 1),
            ("stop_token_ids", !self.stop_token_ids.is_empty()),
            ("stateful", self.stateful),
            ("prompt_logprobs", self.prompt_logprobs),
            ("beam_width", self.beam_width > 0),
            ("outputs", !self.outputs.is_empty()),
        ];
        match others.into_iter().find(|&(_, is_given)| self.pools() && is_given) {
            Some((field, _)) => refuse(format!("{field} excludes pooling, which gives no output; leave out either")),
            None => Ok(()),
        }
    }

    fn validate_beams(&self, config: &Config) -> Result<()> {
        let beam_width = self.beam_width;
        if beam_width == 0 {
            return Ok(());
        }
        if self.n != beam_width {
            let n = self.n;
            return refuse(format!(
                "n is {n} and beam_width {beam_width}; a beam search gives as many as it has beams"
            ));
        }
        if u64::from(config.vocab_size) < 2 * u64::from(beam_width) {
            let vocab_size = config.vocab_size;
            return refuse(format!(
                "beam_width {beam_width} takes the {} likeliest tokens, and vocab_size is {vocab_size}; lower it to at \
                 most {}",
                2 * u64::from(beam_width),
                vocab_size / 2
            ));
        }
        if self.stateful || self.prompt_logprobs {
            let field = if self.stateful { "stateful" } else { "prompt_logprobs" };
            return refuse(format!(
                "{field} excludes beam_width, whose candidates are the model's own; leave out either"
            ));
        }
        if !self.outputs.is_empty() {
            return refuse(
                "a beam search tells nothing before its end and starts anew; leave outputs empty".to_owned(),
            );
        }
        Ok(())
    }

    fn validate_outputs(&self, config: &Config) -> Result<()> {
        if self.outputs.is_empty() {
            return Ok(());
        }
        if self.outputs.len() != self.n as usize {
            let given = self.outputs.len();
            return refuse(format!("outputs has {given} samples and n is {}; give one per sample, or none", self.n));
        }
        if self.outputs.iter().all(|output| output.finished) {
            return refuse("all samples are finished; there is nothing to resume".to_owned());
        }
        let most = self.max_length(config) as usize - self.prompt.len();
        for (sample, output) in self.outputs.iter().enumerate().filter(|(_, output)| !output.finished) {
            tokens_are_ids("outputs", &output.tokens, config.vocab_size)?;
            if output.tokens.len() >= most {
                let given = output.tokens.len();
                return refuse(format!(
                    "sample {sample} has {given} output tokens of at most {most}; mark it finished to resume the others"
                ));
            }
        }
        Ok(())
    }
}

/// A negative id, cast to unsigned, is above any vocabulary.
pub(crate) fn tokens_are_ids(field: &str, tokens: &[i32], vocab_size: u32) -> Result<()> {
    match tokens.iter().position(|&token| token as u32 >= vocab_size) {
        Some(index) => refuse(format!(
            "{field} has token {} at index {index}, and vocab_size is {vocab_size}; give ids from 0 to {}",
            tokens[index],
            vocab_size - 1
        )),
        None => Ok(()),
    }
}

fn finite(field: &str, value: f64) -> Result<()> {
    if value.is_finite() { Ok(()) } else { refuse(format!("{field} must be a finite number, not {value}")) }
}

fn positive(field: &str, seconds: f64) -> Result<()> {
    if seconds > 0.0 && seconds.is_finite() {
        return Ok(());
    }
    refuse(format!("{field} must be a finite number of seconds above 0, not {seconds}"))
}

fn refuse(problem: String) -> Result<()> {
    Err(Error::Request(problem))
}
