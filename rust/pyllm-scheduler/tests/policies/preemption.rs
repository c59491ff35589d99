//! Preempted sequences are swapped to the host or recomputed, whichever costs less; evicted blocks are found again on
//! the host.

use pyllm_scheduler::{Config, PolicyName, Request, Stats};

use crate::engine::{Engine, config, request};

const SWAP_SECONDS: f64 = 0.004; // of a block, there and back

/// Two sequences that outgrow eight blocks, after a measured prefill of `token_seconds` per token.
fn run(num_host_blocks: u32, token_seconds: Option<f64>) -> (Engine, Stats) {
    let settings = Config {
        num_host_blocks,
        swap_block_seconds: SWAP_SECONDS,
        enable_prefix_caching: false,
        ..config(PolicyName::Fcfs, 8, 2)
    };
    let mut engine = Engine::new(settings);
    engine.step_seconds = 0.0;
    if let Some(seconds) = token_seconds {
        (engine.tells_seconds, engine.token_seconds) = (true, seconds);
        engine.add_now(request(9, 16, 4));
        engine.finish();
        // Later steps are not measured, so the estimate stays.
        engine.tells_seconds = false;
    }
    engine.add_now(request(1, 8, 20));
    engine.add_now(request(2, 8, 20));
    while engine.state(2) != "preempted" && engine.state(2) != "swapped" {
        assert!(!engine.step().is_empty(), "there are blocks for both");
    }
    let stats = engine.scheduler.stats();
    assert_eq!(stats.num_preemptions, 1);
    (engine, stats)
}

/// The tokens that the second request computed twice.
fn recomputed(mut engine: Engine) -> u64 {
    engine.finish();
    assert!([1, 2].iter().all(|&id| engine.num_tokens(id) == 20));
    let stats = engine.scheduler.stats();
    assert_eq!((stats.num_ended_preemptions, stats.num_preemptions), (1, 1));
    let before = if engine.served.contains_key(&9) { 16 + 3 } else { 0 };
    stats.num_computed_tokens - before - 2 * (8 + 19)
}

#[test]
fn cheap_swaps_go_to_the_host_and_come_back() {
    // A block holds four tokens, which take longer than a swap.
    let (engine, stats) = run(16, Some(0.0011));
    assert_eq!((engine.state(2), stats.num_swapped), ("swapped", 1));
    assert!(stats.num_free_host_blocks < 16);
    assert_eq!(recomputed(engine), 0);
}

#[test]
fn dear_swaps_are_computed_anew() {
    let (engine, stats) = run(16, Some(0.0005));
    assert_eq!((engine.state(2), stats.num_swapped, stats.num_free_host_blocks), ("preempted", 0, 16));
    assert!(recomputed(engine) > 8);
}

#[test]
fn before_anything_was_measured_swaps_are_taken_to_be_cheap() {
    assert_eq!(run(16, None).1.num_swapped, 1);
}

#[test]
fn a_full_host_leaves_recomputation() {
    let (engine, stats) = run(3, Some(0.1));
    assert_eq!((engine.state(2), stats.num_swapped), ("preempted", 0));
    assert!(recomputed(engine) > 8);
}

#[test]
fn without_a_host_everything_is_computed_anew() {
    assert_eq!(run(0, Some(0.1)).1.num_swapped, 0);
}

#[test]
fn the_end_of_a_swapped_request_frees_the_host() {
    let (mut engine, _) = run(16, None);
    engine.scheduler.abort(crate::engine::CLIENT, pyllm_scheduler::RequestId(2), None);
    engine.scheduler.audit().expect("the books add up");
    assert_eq!(engine.scheduler.stats().num_free_host_blocks, 16);
}

#[test]
fn what_the_device_evicts_is_found_on_the_host() {
    let hits = |num_host_blocks| {
        let settings = Config { num_host_blocks, ..config(PolicyName::Fcfs, 8, 2) };
        let mut engine = Engine::new(settings);
        engine.add(request(1, 17, 1));
        engine.finish();
        engine.add(request(2, 30, 1)); // takes all eight blocks
        engine.finish();
        engine.add(Request { prompt: request(1, 17, 1).prompt, ..request(3, 17, 1) });
        engine.finish();
        let Stats { prefix_hits, host_prefix_hits, .. } = engine.scheduler.stats();
        assert_eq!(u64::from(engine.served[&3].cached.unwrap_or(0)), prefix_hits);
        host_prefix_hits
    };
    assert_eq!((hits(16), hits(0)), (16, 0));
}
