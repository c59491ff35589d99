//! Long prompts beside streams: a threshold for each prompt's chunk, and chunks limited by the streams' targets.

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::engine::{Engine, config, request};

const STREAM: u64 = 0;
const STEP_SECONDS: f64 = 0.010;
const TOKEN_SECONDS: f64 = 0.001;

#[test]
fn a_threshold_keeps_room_for_short_prompts_beside_a_long_one() {
    let settings = Config { long_prefill_token_threshold: 10, ..config(PolicyName::Fcfs, 64, 4) };
    let mut engine = Engine::new(settings);
    engine.add(request(1, 35, 1));
    engine.add(request(2, 8, 1));
    engine.add(request(3, 12, 1));
    let chunks: Vec<Vec<_>> =
        (0..4).map(|_| engine.step().iter().map(|row| (row.request, row.num_tokens)).collect()).collect();
    assert_eq!(chunks, [vec![(1, 10), (2, 8), (3, 10)], vec![(1, 10), (3, 2)], vec![(1, 10)], vec![(1, 5)]]);
}

#[test]
fn a_threshold_is_live_and_zero_is_none() {
    let settings = config(PolicyName::Fcfs, 64, 4);
    let mut engine = Engine::new(settings.clone());
    engine.add(request(1, 100, 1));
    assert_eq!(engine.step()[0].num_tokens, 64);
    engine.scheduler.reconfigure(Config { long_prefill_token_threshold: 9, ..settings }).expect("it is live");
    assert_eq!(engine.step()[0].num_tokens, 9);
}

/// The longest time between two tokens of a stream while prompts of 200 tokens are computed beside it.
fn longest_gap(inter_token_target: f64, tpot_target: Option<f64>, times_are_told: bool) -> f64 {
    let settings = Config {
        max_num_batched_tokens: 128,
        inter_token_target,
        enable_prefix_caching: false,
        ..config(PolicyName::Fcfs, 256, 4)
    };
    let mut engine = Engine::new(settings);
    (engine.step_seconds, engine.token_seconds) = (STEP_SECONDS, TOKEN_SECONDS);
    engine.tells_seconds = times_are_told;
    // Times of steps are learnt from a prompt and a few decodes.
    engine.add_now(request(9, 40, 4));
    engine.finish();
    engine.add_now(Request { tpot_target, ..request(STREAM, 4, 200) });
    engine.steps(4);
    for id in 1..4 {
        engine.add_now(request(id, 200, 1));
    }
    engine.finish();
    let gaps = engine.served[&STREAM].token_times.windows(2).map(|times| times[1] - times[0]);
    gaps.fold(0.0, f64::max)
}

#[test]
fn streams_get_their_next_token_within_the_target() {
    let grace = 4.0 * TOKEN_SECONDS; // one block
    for target in [0.02, 0.03, 0.06] {
        let (bound, unbound) = (longest_gap(target, None, true), longest_gap(0.0, None, true));
        assert!(bound <= target + grace + 1e-9, "{bound} is above {target}");
        assert!(unbound > 0.13, "{unbound} without a target");
    }
}

#[test]
fn a_stream_may_have_a_target_of_its_own() {
    let gap = longest_gap(0.06, Some(0.02), true);
    assert!(gap <= 0.02 + 4.0 * TOKEN_SECONDS + 1e-9, "{gap}");
}

#[test]
fn nothing_is_bound_before_anything_was_measured() {
    assert!(longest_gap(0.02, None, false) > 0.13);
}

/// A target that no step can meet does not stop prompts: each step computes one block.
#[test]
fn an_impossible_target_leaves_one_block_a_step() {
    let settings = Config { inter_token_target: 1e-6, ..config(PolicyName::Fcfs, 64, 2) };
    let mut engine = Engine::new(settings);
    engine.tells_seconds = true;
    (engine.step_seconds, engine.token_seconds) = (STEP_SECONDS, TOKEN_SECONDS);
    engine.add_now(request(STREAM, 4, 40));
    engine.steps(3);
    engine.add_now(request(1, 20, 1));
    for _ in 0..5 {
        let rows = engine.step();
        assert_eq!(rows.iter().map(|row| (row.request, row.num_tokens)).collect::<Vec<_>>(), [(STREAM, 1), (1, 4)]);
    }
    assert!(engine.is_finished(1));
}
