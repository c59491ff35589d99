//! Adapters under every policy: one that waits for a slot of the device stops no others, and gets its slot within a
//! bounded number of steps.

use pyllm_scheduler::{Config, PolicyName, Reason, Request};

use crate::engine::{Engine, config, request};

const VICTIM: u64 = 0;
const POLICIES: [PolicyName; 5] =
    [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom];

fn with(adapter: u32, request: Request) -> Request {
    Request { adapter: format!("adapter {adapter}"), adapter_number: adapter, ..request }
}

fn engine(policy: PolicyName, max_loras: u32) -> Engine {
    Engine::new(Config { max_loras, ..config(policy, 64, 4) })
}

/// A request with an adapter that has a slot arrives every two steps, before another one of it ends.
#[test]
fn an_adapter_gets_a_slot_beside_requests_that_keep_all_in_use() {
    for policy in POLICIES {
        for max_loras in 1..=3 {
            let mut engine = engine(policy, max_loras);
            let mut next = 1;
            let newcomer = |id: u64| with(1 + id as u32 % max_loras, request(id, 5, 6));
            for _ in 0..6 {
                engine.add_now(newcomer(next));
                next += 1;
            }
            engine.step();
            engine.add_now(with(9, request(VICTIM, 5, 6)));
            let mut num_late = 0;
            let steps = engine.finish_request(VICTIM, 1000, |engine| {
                if engine.num_steps % 2 == 0 {
                    engine.add_now(newcomer(next));
                    next += 1;
                }
                num_late += u32::from(engine.reason(VICTIM) == Some(Reason::Adapters));
            });
            assert!(num_late > 0, "{policy:?}, {max_loras} slots: it never lacks a slot");
            assert!(steps < 100, "{policy:?}, {max_loras} slots: {steps} steps");
        }
    }
}

#[test]
fn the_base_and_adapters_with_a_slot_are_served_past_one_without() {
    for policy in POLICIES {
        let mut engine = engine(policy, 2);
        engine.add_now(with(1, request(1, 5, 100)));
        engine.add_now(with(2, request(2, 5, 100)));
        engine.step();
        engine.add_now(with(9, request(VICTIM, 5, 6)));
        engine.step();
        for id in 3..9 {
            let base = request(id, 5, 6);
            // The adapter of the first is the least recently used one, whose slot is to become free.
            engine.add_now(if id % 2 == 0 { with(2, base) } else { base });
            engine.finish_request(id, 10, |_| {});
            assert_eq!(engine.reason(VICTIM), Some(Reason::Adapters), "{policy:?}");
        }
        assert_eq!(engine.served[&1].finish, None);
        engine.finish();
    }
}

#[test]
fn two_adapters_take_turns_in_one_slot() {
    for policy in POLICIES {
        let mut engine = engine(policy, 1);
        for id in 0..40 {
            engine.add_now(with(1 + (id / 3 % 2) as u32, request(id, 5, 6)));
        }
        engine.finish();
        assert!(engine.served.values().all(|served| served.num_tokens() == 6), "{policy:?}");
        assert!(engine.num_steps < 300, "{policy:?}: {} steps", engine.num_steps);
    }
}
