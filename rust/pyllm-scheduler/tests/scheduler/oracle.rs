//! A language model as a pure function: the next token follows from the whole prefix and one uniform number.

use pyllm_scheduler::{Config, Finish, Request, uniform};

/// Token ids it has.
pub const VOCABULARY: u32 = 997;

/// The name of a prefix: of all its tokens in order, and of the cache keys it was computed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix(u64);

impl Prefix {
    pub fn empty(request: &Request) -> Self {
        let keys = format!("{:?}", (&request.tenant, &request.cache_salt, &request.adapter));
        Self(keys.bytes().fold(0, |state, byte| mix(state ^ u64::from(byte))))
    }

    pub fn then(self, token: i32) -> Self {
        Self(mix(self.0 ^ token as u64))
    }

    pub fn next_token(self, uniform: f32) -> i32 {
        (mix(self.0 ^ u64::from(uniform.to_bits()) << 20) % u64::from(VOCABULARY)) as i32
    }
}

/// Everything one sample of a request will generate, and how it ends.
pub fn generate(request: &Request, sample: u32, config: &Config) -> (Vec<i32>, Finish) {
    let mut prefix = request.prompt.iter().fold(Prefix::empty(request), |prefix, &token| prefix.then(token));
    let mut output = Vec::new();
    loop {
        let token = prefix.next_token(uniform(request.seed, output.len() as u32, sample));
        output.push(token);
        prefix = prefix.then(token);
        if request.stop_token_ids.contains(&token) {
            return (output, Finish::Stop);
        }
        let length = request.prompt.len() + output.len();
        if output.len() == request.max_tokens as usize || length == config.max_model_len as usize {
            return (output, Finish::Length);
        }
    }
}

/// Splitmix64's finaliser.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}
