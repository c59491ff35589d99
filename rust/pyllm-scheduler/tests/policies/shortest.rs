//! Shortest: the least remaining work first, by known limits and by the average output length; less work preempts more,
//! and never the other way round.

use proptest::prelude::*;
use pyllm_scheduler::{PolicyName, Request};

use crate::cases::cases;
use crate::engine::{Engine, config, request};

/// All requests arrive at once, so that age decides nothing.
fn engine(max_num_seqs: u32) -> Engine {
    let mut engine = Engine::new(config(PolicyName::Shortest, 256, max_num_seqs));
    engine.step_seconds = 0.0;
    engine
}

#[test]
fn prompt_and_output_count() {
    let mut engine = engine(1);
    engine.step_seconds = 1.0 / 1024.0;
    for (id, prompt_length, max_tokens) in [(1, 20, 10), (2, 4, 20), (3, 10, 10), (4, 2, 3)] {
        engine.add(request(id, prompt_length, max_tokens));
    }
    engine.finish();
    assert_eq!(engine.order_of_ends(), [4, 3, 2, 1]);
}

#[test]
fn less_work_takes_the_place_of_more() {
    let mut engine = engine(1);
    engine.add(request(1, 8, 60));
    engine.steps(3);
    engine.add(request(2, 8, 8));
    engine.step();
    assert_eq!((engine.state(1), engine.num_tokens(2)), ("preempted", 1));
}

#[test]
fn what_is_nearly_done_stays() {
    let mut engine = engine(1);
    engine.add(request(1, 30, 12));
    engine.steps(8); // four tokens are left
    engine.add(request(2, 4, 4)); // eight in all, less than the first had at first
    engine.finish();
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
    assert_eq!(engine.num_tokens(1), 12);
}

/// With a high limit, a request is expected to be as long as others were.
#[test]
fn the_average_of_outputs_stands_for_what_is_not_known() {
    let order = |num_before: u64| {
        let mut engine = engine(1);
        engine.step_seconds = 1e-6;
        for id in 100..100 + num_before {
            engine.add(request(id, 2, 2));
        }
        engine.finish();
        // The first: 30 + 100 tokens; the second: a prompt of 10, and an unknown output.
        engine.add_now(request(1, 30, 100));
        engine.add_now(request(2, 10, 200));
        engine.steps(1);
        [engine.num_tokens(1), engine.num_tokens(2)]
    };
    // 30 + 100 is less than 10 + 128, the expected length before any request has ended, but not with an average near 2.
    assert_eq!(order(0), [1, 0]);
    assert_eq!(order(80), [0, 1]);
}

#[test]
fn age_outweighs_work() {
    let mut engine = Engine::new(config(PolicyName::Shortest, 256, 1));
    engine.add(Request { arrival: -2.0, ..request(1, 30, 100) });
    engine.add(Request { arrival: 0.0, ..request(2, 2, 2) });
    engine.finish();
    assert_eq!(engine.order_of_ends(), [1, 2]);
}

proptest! {
    #![proptest_config(cases(64))]

    /// Each arrival preempts the sequence in a slot at most once: the preempted ones have more left.
    #[test]
    fn nothing_is_preempted_back_and_forth(
        max_num_seqs in 1..4_u32, arrivals in prop::collection::vec((1..40_i32, 1..40_u32, 0..6_u32), 1..30),
    ) {
        let mut engine = Engine::new(config(PolicyName::Shortest, 64, max_num_seqs));
        for (id, &(prompt_length, max_tokens, steps)) in arrivals.iter().enumerate() {
            engine.add_now(request(id as u64, prompt_length, max_tokens));
            engine.steps(steps);
        }
        let before = engine.scheduler.stats();
        assert!(before.num_preemptions <= arrivals.len() as u64, "{} preemptions", before.num_preemptions);
        engine.finish();
        // After the last arrival, running sequences have less left than waiting ones, and that stays so.
        let after = engine.scheduler.stats().num_preemptions - before.num_preemptions;
        assert!(after <= 1, "{after} preemptions and no arrival");
    }
}
