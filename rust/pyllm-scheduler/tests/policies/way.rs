//! Preemption for a waiting request only happens if it makes enough room.

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::engine::{Engine, config, request};

#[test]
fn nothing_is_preempted_in_vain() {
    let mut engine = Engine::new(config(PolicyName::Priority, 100, 8)); // blocks of four tokens
    engine.add_now(request(0, 240, 60));
    for id in 1..5 {
        engine.add_now(Request { priority: 5, ..request(id, 8, 60) });
    }
    engine.steps(5);
    engine.add_now(Request { priority: 1, ..request(9, 180, 4) });
    let before = [1, 2, 3, 4].map(|id| engine.num_tokens(id));
    engine.steps(20);
    assert_eq!(engine.scheduler.stats().num_preemptions, 0);
    assert_eq!([1, 2, 3, 4].map(|id| engine.num_tokens(id)), before.map(|tokens| tokens + 20));
}

#[test]
fn within_a_class_the_stream_with_the_least_slack_is_served_first() {
    let mut engine = Engine::new(config(PolicyName::Priority, 64, 2));
    engine.add_now(request(1, 4, 40));
    engine.add_now(Request { tpot_target: Some(0.001), ..request(2, 4, 40) });
    engine.step();
    let settings = Config { max_num_batched_tokens: 1, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(settings).expect("one token is little, and allowed");
    engine.steps(20);
    assert_eq!((engine.num_tokens(1), engine.num_tokens(2)), (1, 21));
}
