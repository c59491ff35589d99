//! A language model as a pure function: the next token follows from the whole prefix and one uniform number. Whatever
//! the weights' version it says the same, so that an answer is known in advance; what it computes on the way is another.

use pyllm_scheduler::{Config, Finish, Request, uniform};

/// Token ids it has.
pub const VOCABULARY: u32 = 997;

/// The name of a prefix: of all its tokens in order, of the cache keys it was computed under, and of the weights.
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
}

/// Everything that one sample of a request will have generated, what is `given` to begin with, and how it ends.
pub fn generate(request: &Request, sample: u32, given: &[i32], config: &Config) -> (Vec<i32>, Finish) {
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

fn digest(text: &str) -> u64 {
    text.bytes().fold(0, |state, byte| mix(state ^ u64::from(byte)))
}

/// Splitmix64's finaliser.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}
