//! A language model as a pure function: the next token follows from the whole prefix and one uniform number. Its tokens
//! do not depend on the version of the weights, so that an answer is known in advance; its keys and values do.

use pyllm_scheduler::{Config, Finish, Pooling, Request, uniform};

/// Size of its vocabulary.
pub const VOCABULARY: u32 = 997;

/// The identity of a prefix: all its tokens in order, the cache keys it was computed under, and the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    text: u64,
    weights: u64,
}

impl Prefix {
    pub fn empty(request: &Request, weights_version: &str) -> Self {
        let keys = format!("{:?}", (&request.tenant, &request.cache_salt, &request.adapter));
        Self { text: digest(&keys), weights: digest(weights_version) }
    }

    pub fn then(self, token: i32) -> Self {
        Self { text: mix(self.text ^ token as u64), ..self }
    }

    pub fn next_token(self, uniform: f32) -> i32 {
        (mix(self.text ^ u64::from(uniform.to_bits()) << 20) % u64::from(VOCABULARY)) as i32
    }

    /// The embedding of a pooling request with this prompt.
    pub fn embedding(self) -> [f32; 2] {
        [48, 32].map(|shift| f32::from((self.text >> shift) as u16))
    }

    /// The likeliest next tokens with their log-probabilities, some of which are equal.
    pub fn likeliest(self, number: u32) -> Vec<(i32, f32)> {
        let mut state = mix(self.text);
        let (first, mut logprob) = (state % u64::from(VOCABULARY), 0.0);
        let candidate = |place| {
            state = mix(state);
            logprob -= [0.0, 0.25, 0.5, 1.5][(state % 4) as usize];
            (((first + place * 7) % u64::from(VOCABULARY)) as i32, logprob)
        };
        (0..u64::from(number)).map(candidate).collect()
    }
}

/// The embedding of a request's prompt.
pub fn embed(request: &Request) -> [f32; 2] {
    request.prompt.iter().fold(Prefix::empty(request, ""), |prefix, &token| prefix.then(token)).embedding()
}

/// Prompt and output tokens of a request at its longest; the last is never computed.
pub fn longest(request: &Request, config: &Config) -> u32 {
    let num_prompt_tokens = request.prompt.len() as u32;
    match request.pooling {
        Pooling::None => (num_prompt_tokens + request.max_tokens).min(config.max_model_len),
        Pooling::Last | Pooling::Mean => num_prompt_tokens + 1,
    }
}

/// The ids of a token's log-probability entries, itself first; their number depends on the token.
pub fn told_with(token: i32) -> impl Iterator<Item = i32> {
    (0..=token % 3).map(move |more| (token + more) % VOCABULARY as i32)
}

/// The whole output of one sample of a request, which starts with `given`, and its finish reason.
pub fn generate(request: &Request, sample: u32, given: &[i32], config: &Config) -> (Vec<i32>, Finish) {
    if request.pooling != Pooling::None {
        return (Vec::new(), Finish::Stop);
    }
    let known = request.prompt.iter().chain(given);
    let mut prefix = known.fold(Prefix::empty(request, ""), |prefix, &token| prefix.then(token));
    let mut output = given.to_vec();
    loop {
        let token = prefix.next_token(uniform(request.seed, output.len() as u32, sample));
        output.push(token);
        prefix = prefix.then(token);
        if output.len() >= request.min_tokens as usize && request.stop_token_ids.contains(&token) {
            return (output, Finish::Stop);
        }
        let length = request.prompt.len() + output.len();
        if output.len() == request.max_tokens as usize || length == config.max_model_len as usize {
            return (output, Finish::Length);
        }
    }
}

/// The answer of a beam search that keeps all beams and never ends early: samples, with their finish reasons.
pub fn search(request: &Request, config: &Config) -> Vec<(Vec<i32>, Finish)> {
    let num_prompt_tokens = request.prompt.len();
    let prompt = request.prompt.iter().fold(Prefix::empty(request, ""), |prefix, &token| prefix.then(token));
    let most = (request.max_tokens as usize).min(config.max_model_len as usize - num_prompt_tokens);
    let (mut live, mut completed) = (vec![Beam { tokens: Vec::new(), cumulative: 0.0, prefix: prompt }], Vec::new());
    for length in 1..=most {
        let mut going_on = Vec::new();
        for beam in &live {
            for (token, logprob) in beam.prefix.likeliest(2 * request.beam_width) {
                let next = beam.then(token, logprob);
                if !request.stop_token_ids.contains(&token) {
                    going_on.push((next.score(request, num_prompt_tokens + length), next));
                } else if length >= request.min_tokens as usize {
                    completed.push((next.score(request, num_prompt_tokens + length - 1), next, Finish::Stop));
                }
            }
        }
        going_on.sort_by(|one, other| other.0.total_cmp(&one.0));
        going_on.truncate(request.beam_width as usize);
        if length == most {
            completed.extend(going_on.drain(..).map(|(score, beam)| (score, beam, Finish::Length)));
        }
        live = going_on.into_iter().map(|(_, beam)| beam).collect();
    }
    completed.sort_by(|one, other| other.0.total_cmp(&one.0));
    let found = completed.into_iter().map(|(_, beam, finish)| (beam.tokens, finish));
    found.chain(std::iter::repeat((Vec::new(), Finish::Stop))).take(request.beam_width as usize).collect()
}

struct Beam {
    tokens: Vec<i32>,
    cumulative: f64,
    prefix: Prefix,
}

impl Beam {
    fn then(&self, token: i32, logprob: f32) -> Self {
        let tokens = [&self.tokens[..], &[token]].concat();
        Self { tokens, cumulative: self.cumulative + f64::from(logprob), prefix: self.prefix.then(token) }
    }

    fn score(&self, request: &Request, length: usize) -> f64 {
        self.cumulative / f64::from(length as u32).powf(request.length_penalty)
    }
}

fn digest(text: &str) -> u64 {
    text.bytes().fold(0, |state, byte| mix(state ^ u64::from(byte)))
}

/// Splitmix64's finaliser.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}
