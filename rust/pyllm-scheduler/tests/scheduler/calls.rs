//! Random limits, and random calls in any order, senseless ones among them.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use pyllm_scheduler::Config;

use crate::oracle::VOCABULARY;

/// One call, or one round of calls. A `pick` chooses among the requests there have been.
#[derive(Clone, Debug)]
pub enum Call {
    Add(Add),
    Schedule,
    Commit,
    Take { client: u32 },
    Abort { pick: usize, sample: Option<u32> },
    Hold { pick: usize },
    Release { pick: usize },
    DropClient { client: u32 },
    LoseDevice,
    Wrong(Wrong),
}

#[derive(Clone, Debug)]
pub struct Add {
    pub client: u32,
    /// Prompts of one text start alike.
    pub text: i32,
    pub prompt_length: usize,
    /// At most; as many as may run at once.
    pub n: u32,
    pub seed: u64,
    pub max_tokens: u32,
    /// A share of the vocabulary: a token is a stop token if it is a multiple.
    pub stop_every: Option<usize>,
    pub arrival: i32,
    pub tenant: bool,
    pub salt: bool,
    pub adapter: bool,
    /// For every sample, whether it has finished, and the tokens it has if not.
    pub resume: Option<Vec<(bool, usize)>>,
}

/// Calls that must be refused.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    AddTwice { pick: usize },
    AddInvalid { kind: usize },
    CommitUnknown,
    CommitOutOfOrder,
    CommitShape { kind: usize },
    TimeGoesBack,
    HoldTwice { pick: usize },
    ReleaseNotHeld { pick: usize },
    UnknownRequest,
}

pub fn config() -> impl Strategy<Value = Config> {
    let sizes = (1..=8_u32, 4..=24_u32, 1..=6_u32, 1..=32_u32, 8..=64_u32, any::<bool>());
    sizes.prop_map(|(block_size, num_blocks, max_num_seqs, max_num_batched_tokens, max_model_len, caching)| Config {
        block_size,
        num_blocks,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        vocab_size: VOCABULARY,
        enable_prefix_caching: caching,
        ..Config::default()
    })
}

pub fn calls() -> impl Strategy<Value = Vec<Call>> {
    vec(call(), 1..150)
}

fn call() -> impl Strategy<Value = Call> {
    let pick = any::<usize>();
    prop_oneof![
        8 => add().prop_map(Call::Add),
        20 => Just(Call::Schedule),
        16 => Just(Call::Commit),
        3 => (0..3_u32).prop_map(|client| Call::Take { client }),
        2 => (pick, option::of(0..5_u32)).prop_map(|(pick, sample)| Call::Abort { pick, sample }),
        2 => pick.prop_map(|pick| Call::Hold { pick }),
        2 => pick.prop_map(|pick| Call::Release { pick }),
        1 => (0..3_u32).prop_map(|client| Call::DropClient { client }),
        1 => Just(Call::LoseDevice),
        2 => wrong().prop_map(Call::Wrong),
    ]
}

fn add() -> impl Strategy<Value = Add> {
    let shape = (0..3_u32, 0..2_i32, 1..40_usize, 1..=4_u32, any::<u64>(), 1..16_u32);
    let rest = (
        option::of(2..30_usize),
        -3..10_i32,
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.3),
        proptest::bool::weighted(0.1),
        option::weighted(0.2, vec((proptest::bool::weighted(0.3), 0..12_usize), 4)),
    );
    (shape, rest).prop_map(|(shape, (stop_every, arrival, tenant, salt, adapter, resume))| {
        let (client, text, prompt_length, n, seed, max_tokens) = shape;
        Add { client, text, prompt_length, n, seed, max_tokens, stop_every, arrival, tenant, salt, adapter, resume }
    })
}

fn wrong() -> impl Strategy<Value = Wrong> {
    let pick = any::<usize>();
    prop_oneof![
        pick.prop_map(|pick| Wrong::AddTwice { pick }),
        (0..10_usize).prop_map(|kind| Wrong::AddInvalid { kind }),
        Just(Wrong::CommitUnknown),
        Just(Wrong::CommitOutOfOrder),
        (0..5_usize).prop_map(|kind| Wrong::CommitShape { kind }),
        Just(Wrong::TimeGoesBack),
        pick.prop_map(|pick| Wrong::HoldTwice { pick }),
        pick.prop_map(|pick| Wrong::ReleaseNotHeld { pick }),
        Just(Wrong::UnknownRequest),
    ]
}
