//! Isolation of a request: its steps alternate with those of the others, and none waits for ever.

use proptest::prelude::*;
use pyllm_scheduler::{Output, PolicyName, Reason, Request, RequestId};

use crate::cases::cases;
use crate::engine::{CLIENT, Engine, Row, config, request};

const ALONE: u64 = 0;
const POLICIES: [PolicyName; 5] =
    [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom];

fn isolate(engine: &mut Engine) {
    engine.scheduler.isolate(CLIENT, RequestId(ALONE)).expect("it is live, and no other is isolated");
}

fn is_alone(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.request == ALONE)
}

#[test]
fn a_long_prompt_by_itself_takes_turns_with_those_that_run() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 200, 4));
    for id in 1..3 {
        engine.add(request(id, 4, 40));
    }
    engine.step();
    engine.add(request(ALONE, 200, 8)); // four steps of 64
    isolate(&mut engine);
    let mut turns = Vec::new();
    while engine.scheduler.isolated().is_some() {
        let reason = if is_alone(&engine.step()) { engine.reason(1) } else { engine.reason(ALONE) };
        assert_eq!(reason, Some(Reason::Isolation));
        turns.push(engine.explain(ALONE)[0].num_tokens > 0);
    }
    assert_eq!(turns, [true, false, true, false, true, false, true]);
    assert_eq!(engine.step().len(), 3, "it goes on among the others");
}

#[test]
fn the_others_have_a_turn_between_two_that_are_isolated() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 4));
    for id in 0..3 {
        engine.add(request(id, 4, 8));
    }
    let turns = [0, 1].map(|id| {
        engine.scheduler.isolate(CLIENT, RequestId(id)).expect("no other is isolated");
        let mut turns = Vec::new();
        while engine.scheduler.isolated().is_some() {
            turns.push(engine.step().len());
        }
        turns
    });
    assert_eq!(turns, [vec![1], vec![2, 1]]);
}

#[test]
fn what_waits_beside_it_is_told_so() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 4));
    for id in 0..2 {
        engine.add(request(id, 4, 8));
    }
    isolate(&mut engine);
    engine.step();
    assert_eq!((engine.state(1), engine.reason(1)), ("waiting", Some(Reason::Isolation)));
}

#[test]
fn it_is_over_when_every_sample_has_one_more_token() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 2));
    engine.add(Request { n: 2, ..request(ALONE, 4, 8) });
    engine.steps(3);
    let lengths = |engine: &Engine| engine.explain(ALONE).iter().map(|one| one.num_known).collect::<Vec<_>>();
    let before = lengths(&engine);
    isolate(&mut engine);
    engine.scheduler.lose_device();
    engine.step();
    assert_eq!(engine.scheduler.isolated(), None, "both have had room in one step");
    assert!(lengths(&engine).iter().zip(before).all(|(&now, before)| now > before));
}

#[test]
fn it_is_over_when_the_sample_that_had_none_is_aborted() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 2));
    engine.add(request(ALONE + 1, 4, 40));
    engine.step();
    let outputs = vec![Output { tokens: vec![7], finished: false }; 2];
    engine.add(Request { n: 2, outputs, ..request(ALONE, 4, 20) });
    engine.steps(2);
    isolate(&mut engine);
    engine.steps(3);
    assert!(engine.scheduler.isolated().is_some(), "one sample has no slot");
    engine.scheduler.abort(CLIENT, RequestId(ALONE), Some(1));
    assert_eq!(engine.scheduler.isolated(), None);
}

#[test]
fn it_outlives_the_device_and_ends_with_a_hold() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 2));
    engine.add(request(ALONE, 4, 8));
    isolate(&mut engine);
    engine.scheduler.lose_device();
    assert_eq!(engine.scheduler.isolated(), Some((CLIENT, RequestId(ALONE))));
    engine.scheduler.hold(CLIENT, RequestId(ALONE), "test").expect("it is not held");
    assert_eq!(engine.scheduler.isolated(), None);
}

#[test]
fn what_runs_leaves_it_its_place() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 1));
    engine.add(Request { priority: 9, ..request(ALONE, 130, 8) }); // three steps of 64
    isolate(&mut engine);
    engine.step();
    engine.add(request(1, 4, 8));
    engine.steps(2);
    assert_eq!(engine.num_tokens(ALONE), 1);
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
    engine.step();
    assert_eq!(engine.scheduler.stats().num_preemptions, 1, "from then on it is as any other");
}

proptest! {
    #![proptest_config(cases(64))]

    /// With any number of arrivals, the isolated request ends, and so do the others: if there are too few blocks and
    /// slots for all, each turn without room is followed by one with room.
    #[test]
    fn neither_starves(
        policy in prop::sample::select(POLICIES.to_vec()),
        num_blocks in 12..24_u32,
        prompt_length in 1..32_i32,
        max_tokens in 1..16_u32,
        n in 1..4_u32,
        others in prop::collection::vec((1..20_i32, 1..20_u32), 1..8),
    ) {
        let mut engine = Engine::new(config(policy, num_blocks, 3));
        for (id, &(length, most)) in (1..).zip(&others) {
            engine.add(request(id, length, most));
        }
        engine.steps(3);
        engine.add(Request { n, ..request(ALONE, prompt_length, max_tokens) });
        isolate(&mut engine);
        let (mut next, mut alone, mut beside) = (others.len() as u64 + 1, 0, 0);
        for _ in 0..400 {
            if engine.scheduler.isolated().is_none() {
                break;
            }
            engine.add_now(request(next, 5, 8));
            next += 1;
            let rows = engine.step();
            if is_alone(&rows) { alone += 1 } else { beside += 1 }
            prop_assert!(alone <= beside + 2 || engine.scheduler.stats().num_running == u64::from(n), "they take turns");
        }
        prop_assert_eq!(engine.scheduler.isolated(), None, "it had {} steps of {}", alone, alone + beside);
    }
}
