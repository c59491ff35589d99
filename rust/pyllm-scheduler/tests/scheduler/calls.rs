//! Random limits, and random calls in any order, including invalid ones.

mod change;
mod searching;
mod wrong;

use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use pyllm_scheduler::{Config, KvGroup, Pause};

use crate::oracle::VOCABULARY;

pub use change::Change;
pub use searching::searching_case;
pub use wrong::Wrong;

/// The input of a simulation: settings and calls.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: Config,
    /// Maximum number of steps in flight.
    pub depth: usize,
    pub calls: Vec<Call>,
    pub is_recorded: bool,
    /// Seed for unready grammars and forced tokens.
    pub moods: u64,
    /// The position of the changed byte in a damaged recording, and its change.
    pub damage: (usize, u8),
}

/// A call, or a round of calls. A `pick` chooses among the last requests.
#[derive(Clone, Debug)]
pub enum Call {
    Add(Add),
    Schedule { after: f64 },
    Commit { seconds: f64, positions: Positions },
    Take { client: u32 },
    Abort { pick: usize, sample: Option<u32> },
    Hold { pick: usize, holder: &'static str },
    Release { pick: usize, holder: &'static str },
    Isolate { pick: usize },
    Expire { after: f64 },
    DropClient { client: u32 },
    LoseDevice,
    Reconfigure(Change),
    Propose { pick: usize, sample: usize, drafts: Drafts },
    OfferLoad { pick: usize, offer: Offer },
    FinishLoad { pick: usize },
    TakeSaves,
    FinishSave { pick: usize },
    Pin { name: u64, prompt: Prompt },
    Unpin { name: u64 },
    ResetPrefixCache,
    Pause(Pause),
    Wrong(Wrong),
}

#[derive(Clone, Debug)]
pub struct Add {
    pub client: u32,
    pub prompt: Prompt,
    /// Upper bound; limited by the number of slots.
    pub n: u32,
    pub seed: u64,
    pub max_tokens: u32,
    /// Upper bound.
    pub min_tokens: u32,
    /// Stop tokens are the multiples of this number.
    pub stop_every: Option<usize>,
    pub arrival: i32,
    pub deadline: Option<i32>,
    pub ttft_target: Option<f64>,
    pub tpot_target: Option<f64>,
    pub priority: i32,
    pub policy_key: f64,
    /// For every sample, whether it has finished, and its number of tokens if not.
    pub resume: Option<Vec<(bool, usize)>>,
    /// The length penalty of a beam search with `n` beams.
    pub length_penalty: Option<f64>,
    pub offer: Option<Offer>,
    /// Whether it asks for an embedding in place of samples, unless it is a beam search.
    pub pooling: bool,
    pub stateful: bool,
    /// Whether the worker sends log-probabilities of the output, and of the prompt. For the prompt, whether a chunk's
    /// row includes the token after it, or the next chunk's row does.
    pub logprobs: bool,
    pub prompt_logprobs: Option<bool>,
}

/// Loaded keys and values, of which `quarters` are right.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub num_tokens: u32,
    pub asynchronous: bool,
    pub quarters: usize,
}

/// A prompt; those of the same text have a common start.
#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    pub text: i32,
    pub length: usize,
    pub tenant: &'static str,
    pub salt: bool,
    /// The number of its adapter; 0: none.
    pub adapter: u32,
}

/// The number of positions that a worker returns for a row with drafts.
#[derive(Clone, Copy, Debug)]
pub enum Positions {
    All,
    /// Up to the first wrong draft.
    Accepted,
    First,
}

/// Drafts with up to `num_right` right tokens, then wrong ones.
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    pub num_right: usize,
    pub num_wrong: usize,
}

pub fn case() -> impl Strategy<Value = Case> {
    let rest = (1..=3_usize, any::<bool>(), any::<u64>(), (any::<usize>(), 1..=255_u8));
    (config(), vec(call(), 1..150), rest).prop_map(|(config, calls, (depth, is_recorded, moods, damage))| Case {
        config,
        depth,
        calls,
        is_recorded,
        moods,
        damage,
    })
}

/// A case of a model with layers that keep a state.
pub fn state_case() -> impl Strategy<Value = Case> {
    let states = (prop_oneof![2..=4_u32, 5..=20_u32], prop_oneof![Just(0), 1..=12_u32], 0..=3_u32);
    (case(), states).prop_map(|(mut case, (num_states, num_host_states, checkpoint_blocks))| {
        (case.config.num_states, case.config.num_host_states) = (num_states, num_host_states);
        case.config.state_checkpoint_blocks = checkpoint_blocks;
        case
    })
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = (1..=8_u32, 4..=24_u32, 0..=16_u32, 1..=6_u32, 8..=64_u32, 0..12_u32);
    let outside = (select(&["", "model"][..]), prop_oneof![Just(0_u32), 1..=6_u32]);
    let features =
        (weighted(0.8), weighted(0.8), any::<u64>(), select(&[0.0, 1e-3, 1e9][..]), 0..=16_u32, stages(), outside);
    let rest = (vec(change::change(), 12), kv_groups(), 0..=3_u32);
    (sizes, features, rest).prop_map(|(sizes, features, (changes, kv_groups, max_loras))| {
        let num_groups = kv_groups.len() as u32;
        let (block_size, num_blocks, num_host_blocks, max_num_seqs, max_model_len, max_pinned_blocks) = sizes;
        let (enable_prefix_caching, enable_kv_cache_events, incarnation, ..) = features;
        let (.., swap_block_seconds, num_speculative_tokens, pipeline_parallel_size, outside) = features;
        let mut config = Config {
            block_size,
            num_blocks: num_blocks * num_groups,
            num_host_blocks: num_host_blocks * num_groups,
            kv_groups,
            max_num_seqs,
            max_model_len,
            vocab_size: VOCABULARY,
            enable_prefix_caching,
            max_pinned_blocks: max_pinned_blocks.min(num_blocks * num_groups / 2),
            cache_namespace: outside.0.to_owned(),
            max_saving_blocks: outside.1.min(num_blocks),
            enable_kv_cache_events,
            incarnation,
            swap_block_seconds,
            num_speculative_tokens,
            pipeline_parallel_size,
            max_loras,
            max_num_batched_tokens: 32,
            ..Config::default()
        };
        for change in &changes {
            change.apply(&mut config);
        }
        config
    })
}

/// Mostly one stage; sometimes fewer or more than there are steps in flight.
fn stages() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(1_u32), 1 => 2..=4_u32]
}

/// One group without a window, or a few groups, of which the first reads more than one token.
pub fn kv_groups() -> impl Strategy<Value = Vec<KvGroup>> {
    let group = || option::weighted(0.8, 1..24_u32).prop_map(|window| KvGroup { window });
    let groups = (option::of(2..24_u32), vec(group(), 0..3)).prop_map(|(window, rest)| {
        let first = KvGroup { window };
        [vec![first], rest].concat()
    });
    prop_oneof![Just(vec![KvGroup::default()]), groups]
}

fn call() -> impl Strategy<Value = Call> {
    let pick = any::<usize>;
    let drafts = (0..6_usize, 0..4_usize).prop_map(|(num_right, num_wrong)| Drafts { num_right, num_wrong });
    prop_oneof![
        16 => add().prop_map(Call::Add),
        40 => select(&[0.5, 0.5, 0.0, 3.0][..]).prop_map(|after| Call::Schedule { after }),
        32 => (seconds(), positions()).prop_map(|(seconds, positions)| Call::Commit { seconds, positions }),
        6 => (0..3_u32).prop_map(|client| Call::Take { client }),
        4 => (pick(), option::of(0..5_u32)).prop_map(|(pick, sample)| Call::Abort { pick, sample }),
        4 => (pick(), holder()).prop_map(|(pick, holder)| Call::Hold { pick, holder }),
        6 => (pick(), holder()).prop_map(|(pick, holder)| Call::Release { pick, holder }),
        4 => pick().prop_map(|pick| Call::Isolate { pick }),
        1 => select(&[0.0, 0.5][..]).prop_map(|after| Call::Expire { after }),
        1 => (0..3_u32).prop_map(|client| Call::DropClient { client }),
        1 => Just(Call::LoseDevice),
        5 => change::change().prop_map(Call::Reconfigure),
        8 => (pick(), pick(), drafts).prop_map(|(pick, sample, drafts)| Call::Propose { pick, sample, drafts }),
        3 => (pick(), offer()).prop_map(|(pick, offer)| Call::OfferLoad { pick, offer }),
        3 => pick().prop_map(|pick| Call::FinishLoad { pick }),
        6 => Just(Call::TakeSaves),
        8 => pick().prop_map(|pick| Call::FinishSave { pick }),
        3 => (0..4_u64, prompt()).prop_map(|(name, prompt)| Call::Pin { name, prompt }),
        2 => (0..4_u64).prop_map(|name| Call::Unpin { name }),
        1 => Just(Call::ResetPrefixCache),
        4 => select(&[Pause::None, Pause::None, Pause::New, Pause::All][..]).prop_map(Call::Pause),
        6 => wrong::wrong().prop_map(Call::Wrong),
    ]
}

fn holder() -> impl Strategy<Value = &'static str> {
    select(&["test", "another"][..])
}

fn add() -> impl Strategy<Value = Add> {
    let shape = (0..3_u32, prompt(), 1..=4_u32, any::<u64>(), 1..16_u32, 0..8_u32);
    let order = (-3..10_i32, option::weighted(0.3, 0..25_i32), -2..3_i32, -1.0..1.0_f64);
    let targets = (option::weighted(0.2, 0.01..9.0_f64), option::weighted(0.2, 1e-6..2.0_f64));
    let ends = (
        option::of(2..30_usize),
        option::weighted(0.2, vec((weighted(0.3), 0..12_usize), 4)),
        option::weighted(0.3, offer()),
        option::weighted(0.15, select(&[1.0, 0.0, -0.5, 2.0][..])),
    );
    let sampling = (weighted(0.15), any::<bool>(), weighted(0.3), option::weighted(0.2, any::<bool>()));
    (shape, order, targets, ends, sampling).prop_map(|(shape, order, targets, ends, sampling)| {
        let (client, prompt, n, seed, max_tokens, min_tokens) = shape;
        let ((ttft_target, tpot_target), (stop_every, resume, offer, length_penalty)) = (targets, ends);
        let (pooling, stateful, logprobs, prompt_logprobs) = sampling;
        let (arrival, deadline, priority, policy_key) = order;
        Add {
            client,
            prompt,
            n,
            seed,
            max_tokens,
            min_tokens,
            stop_every,
            arrival,
            deadline,
            ttft_target,
            tpot_target,
            priority,
            policy_key,
            resume,
            length_penalty,
            offer,
            pooling,
            stateful,
            logprobs,
            prompt_logprobs,
        }
    })
}

fn offer() -> impl Strategy<Value = Offer> {
    (0..48_u32, any::<bool>(), prop_oneof![Just(4_usize), 0..4_usize])
        .prop_map(|(num_tokens, asynchronous, quarters)| Offer { num_tokens, asynchronous, quarters })
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let tenants = select(&["", "", "", "", "one", "two"][..]);
    let adapter = prop_oneof![3 => Just(0), 2 => 1..=4_u32];
    (0..2_i32, 1..40_usize, tenants, weighted(0.2), adapter).prop_map(|(text, length, tenant, salt, adapter)| Prompt {
        text,
        length,
        tenant,
        salt,
        adapter,
    })
}

fn seconds() -> impl Strategy<Value = f64> {
    select(&[0.0, 1e-6, 1e-3, 0.25, 1e3, -1.0, f64::NAN][..])
}

fn positions() -> impl Strategy<Value = Positions> {
    select(&[Positions::All, Positions::All, Positions::Accepted, Positions::First][..])
}
