//! Cases of beam searches: most requests are one, and there are too few blocks and slots for all their beams.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use pyllm_scheduler::Config;

use super::{Add, Call, Case, Positions, Prompt, add, change, kv_groups};
use crate::oracle::VOCABULARY;

pub fn searching_case() -> impl Strategy<Value = Case> {
    let rest = (1..=2_usize, any::<bool>(), (any::<usize>(), 1..=255_u8), any::<u64>());
    (config(), vec(call(), 1..100), rest).prop_map(|(config, calls, (depth, is_recorded, damage, moods))| Case {
        config,
        depth,
        calls,
        is_recorded,
        moods,
        damage,
    })
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = (1..=4_u32, 6..=24_u32, 0..=8_u32, 2..=5_u32, 4..=20_u32);
    let rest = (any::<bool>(), vec(change::change(), 12), kv_groups(), 0..=2_u32);
    (sizes, rest).prop_map(|(sizes, (enable_prefix_caching, changes, kv_groups, max_loras))| {
        let num_groups = kv_groups.len() as u32;
        let (block_size, num_blocks, num_host_blocks, max_num_seqs, max_model_len) = sizes;
        let mut config = Config {
            block_size,
            num_blocks: num_blocks * num_groups,
            num_host_blocks: num_host_blocks * num_groups,
            kv_groups,
            max_num_seqs,
            max_model_len,
            vocab_size: VOCABULARY,
            enable_prefix_caching,
            max_loras,
            max_num_batched_tokens: 16,
            ..Config::default()
        };
        for change in &changes {
            change.apply(&mut config);
        }
        config
    })
}

fn call() -> impl Strategy<Value = Call> {
    let pick = any::<usize>;
    prop_oneof![
        16 => search().prop_map(Call::Add),
        40 => select(&[0.5, 0.0][..]).prop_map(|after| Call::Schedule { after }),
        32 => Just(Call::Commit { seconds: 0.0, positions: Positions::All }),
        2 => (pick(), option::of(0..5_u32)).prop_map(|(pick, sample)| Call::Abort { pick, sample }),
        3 => pick().prop_map(|pick| Call::Hold { pick, holder: "test" }),
        3 => pick().prop_map(|pick| Call::Release { pick, holder: "test" }),
        3 => pick().prop_map(|pick| Call::Isolate { pick }),
        1 => Just(Call::LoseDevice),
        2 => change::change().prop_map(Call::Reconfigure),
    ]
}

fn search() -> impl Strategy<Value = Add> {
    let length_penalty = option::weighted(0.8, select(&[1.0, 0.0, -0.5, 2.0][..]));
    (add(), 1..8_usize, 1..8_u32, length_penalty).prop_map(|(add, length, max_tokens, length_penalty)| Add {
        prompt: Prompt { length, ..add.prompt },
        max_tokens,
        deadline: None,
        length_penalty,
        offer: None,
        ..add
    })
}
