//! Priority: a lower class preempts a higher one at once, the least slack is first within a class, and no sequence is
//! preempted for one that would be preempted in turn.

use proptest::prelude::*;

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::cases::cases;
use crate::engine::{Engine, config, request};

fn class(priority: i32, request: Request) -> Request {
    Request { priority, ..request }
}

#[test]
fn a_lower_class_takes_a_slot_at_once() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 2));
    engine.add_now(class(1, request(1, 4, 20)));
    engine.add_now(class(2, request(2, 4, 20)));
    engine.steps(3);
    engine.add_now(class(0, request(3, 4, 20)));
    let rows = engine.step();
    assert_eq!(rows.iter().map(|row| row.request).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((engine.state(2), engine.num_tokens(3)), ("preempted", 1));
}

#[test]
fn a_lower_class_takes_blocks_at_once() {
    let mut engine = Engine::new(config(PolicyName::Priority, 8, 4));
    engine.add_now(class(1, request(1, 12, 8)));
    engine.add_now(class(1, Request { arrival: 0.1, ..request(2, 12, 8) }));
    engine.step();
    engine.add_now(class(0, request(3, 14, 4)));
    engine.step();
    assert_eq!((engine.state(1), engine.state(2), engine.state(3)), ("running", "preempted", "running"));
}

#[test]
fn no_more_is_preempted_than_makes_room() {
    let settings = Config { expected_growth: 1.0, ..config(PolicyName::Priority, 15, 8) };
    let mut engine = Engine::new(settings);
    // Each needs five blocks for its expected growth.
    for id in 0..3 {
        engine.add_now(class(1, request(id, 5, 11)));
    }
    engine.step();
    assert_eq!(engine.scheduler.stats().num_running, 3);
    engine.add_now(class(0, request(9, 5, 11)));
    engine.step();
    assert_eq!(engine.scheduler.stats().num_preemptions, 1);
    assert_eq!((engine.num_tokens(9), engine.state(2)), (1, "preempted"));
}

#[test]
fn equal_classes_do_not_preempt() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 1));
    engine.add_now(Request { ttft_target: Some(9.0), ..request(1, 4, 8) });
    engine.steps(2);
    engine.add_now(Request { ttft_target: Some(0.1), ..request(2, 4, 8) });
    engine.finish();
    assert_eq!((engine.order_of_ends(), engine.scheduler.stats().num_preemptions), (vec![1, 2], 0));
}

#[test]
fn a_class_goes_by_arrival_without_targets() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 1));
    for (id, arrival) in [(1, -1.0), (2, -3.0), (3, -2.0)] {
        engine.add(Request { arrival, ..request(id, 4, 2) });
    }
    engine.add(class(-1, request(4, 4, 2)));
    engine.finish();
    assert_eq!(engine.order_of_ends(), [4, 2, 3, 1]);
}

#[test]
fn a_class_goes_by_slack_with_targets() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 1));
    // The one without a target counts as if its first token were due after ten seconds.
    for (id, ttft_target) in [(1, None), (2, Some(20.0)), (3, Some(3.0)), (4, Some(5.0))] {
        engine.add(Request { ttft_target, ..request(id, 4, 2) });
    }
    engine.finish();
    assert_eq!(engine.order_of_ends(), [3, 4, 1, 2]);
}

#[test]
fn slack_counts_the_prefill_before_the_first_token() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 1));
    (engine.tells_seconds, engine.token_seconds) = (true, 1.0);
    engine.add_now(request(1, 16, 4));
    engine.finish();
    // A second per token: the long prompt takes twenty seconds more than the short one.
    engine.add_now(Request { ttft_target: Some(40.0), ..request(2, 4, 1) });
    engine.add_now(Request { ttft_target: Some(50.0), ..request(3, 24, 1) });
    engine.finish();
    assert_eq!(engine.order_of_ends(), [1, 3, 2]);
}

#[test]
fn what_was_preempted_goes_by_when_its_next_token_is_due() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 2));
    for (id, tpot_target) in [(1, 5.0), (2, 1.0)] {
        engine.add_now(Request { tpot_target: Some(tpot_target), ..class(1, request(id, 4, 8)) });
    }
    engine.steps(2);
    for id in [3, 4] {
        engine.add_now(request(id, 4, 4 + id as u32)); // the first ends a step before the other
    }
    engine.step();
    assert_eq!((engine.state(1), engine.state(2)), ("preempted", "preempted"));
    engine.finish();
    assert_eq!(engine.order_of_ends(), [3, 4, 2, 1]);
}

proptest! {
    #![proptest_config(cases(64))]

    /// With a shortage of slots only, an arrival displaces at most one request of each higher class.
    #[test]
    fn nothing_is_preempted_back_and_forth(
        max_num_seqs in 1..4_u32, arrivals in prop::collection::vec((0..3_i32, 1..12_i32, 1..12_u32, 0..4_u32), 1..40),
    ) {
        let mut engine = Engine::new(config(PolicyName::Priority, 32, max_num_seqs));
        for (id, &(priority, prompt_length, max_tokens, steps)) in arrivals.iter().enumerate() {
            engine.add_now(class(priority, request(id as u64, prompt_length, max_tokens)));
            let running = engine.scheduler.stats().num_preemptions;
            engine.step();
            assert!(engine.scheduler.stats().num_preemptions - running <= u64::from(max_num_seqs));
            engine.steps(steps);
        }
        engine.finish();
        let preemptions = engine.scheduler.stats().num_preemptions;
        assert!(preemptions <= 2 * arrivals.len() as u64, "{preemptions} preemptions by {}", arrivals.len());
    }

    /// At every step, no request runs if one of a lower class waits that would fit in its place.
    #[test]
    fn what_runs_is_of_the_lowest_classes(
        num_blocks in 8..24_u32, arrivals in prop::collection::vec((0..3_i32, 1..12_i32, 1..12_u32, 0..4_u32), 1..40),
    ) {
        let mut engine = Engine::new(config(PolicyName::Priority, num_blocks, 3));
        for (id, &(priority, prompt_length, max_tokens, steps)) in arrivals.iter().enumerate() {
            engine.add_now(class(priority, request(id as u64, prompt_length, max_tokens)));
            for _ in 0..=steps {
                let blocks: Vec<_> = arrivals[..=id].iter().enumerate().map(|(id, arrival)| {
                    (arrival.1 as u32 + engine.num_tokens(id as u64) as u32).div_ceil(engine.scheduler.config().block_size)
                }).collect();
                let ran: Vec<_> = (0..=id).map(|id| engine.state(id as u64) == "running").collect();
                engine.step();
                let is = |id: usize, states: &[&str]| states.contains(&engine.state(id as u64));
                let class = |id: usize| arrivals[id].0;
                let highest = (0..=id).filter(|&id| is(id, &["running"])).map(class).max();
                let lowest = (0..=id).filter(|&id| is(id, &["waiting", "preempted"])).min_by_key(|&id| class(id));
                let Some((highest, lowest)) = highest.zip(lowest).filter(|&(highest, lowest)| highest > class(lowest)) else {
                    continue;
                };
                let stays = |id: &usize| class(*id) <= class(lowest) && (ran[*id] || is(*id, &["running"]));
                let kept: u32 = (0..=id).filter(stays).map(|id| blocks[id]).sum();
                prop_assert!(kept + blocks[lowest] > num_blocks, "class {highest} runs and {} waits", class(lowest));
            }
        }
        engine.finish();
    }
}
