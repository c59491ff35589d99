//! Nothing starves: beside new requests that would occupy the engine for ever, one that came early or is long ends within
//! a number of steps that does not grow with them.

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::engine::{Engine, config, request};

const VICTIM: u64 = 0;

/// Steps until the victim has ended, where every step two more requests come, twice what three slots can take.
fn steps_to_the_end(policy: PolicyName, num_blocks: u32, victim: Request, newcomer: impl Fn(u64) -> Request) -> u32 {
    let mut engine = Engine::new(config(policy, num_blocks, 3));
    // The queue is full of them before the victim comes.
    let mut next = 1;
    for _ in 0..10 {
        engine.add_now(newcomer(next));
        next += 1;
    }
    engine.add_now(victim);
    let steps = engine.finish_request(VICTIM, 4000, |engine| {
        for _ in 0..2 {
            engine.add_now(newcomer(next));
            next += 1;
        }
    });
    let stats = engine.scheduler.stats();
    println!("{policy:?}: {steps} steps, {} preemptions, {} wait", stats.num_preemptions, stats.num_waiting);
    assert!(stats.num_waiting > 10, "the newcomers are more than the engine can take");
    steps
}

/// Three of these run out of twelve blocks.
fn short(id: u64) -> Request {
    request(id, 5, 8)
}

fn long() -> Request {
    request(VICTIM, 16, 24)
}

#[test]
fn first_come_first_served() {
    assert!(steps_to_the_end(PolicyName::Fcfs, 12, long(), short) < 200);
}

#[test]
fn shortest_ages() {
    assert!(steps_to_the_end(PolicyName::Shortest, 12, long(), short) < 400);
}

#[test]
fn fair_within_a_tenant() {
    assert!(steps_to_the_end(PolicyName::Fair, 12, long(), short) < 400);
}

#[test]
fn fair_beside_another_tenant() {
    let newcomer = |id| Request { tenant: "many".to_owned(), ..short(id) };
    assert!(steps_to_the_end(PolicyName::Fair, 12, long(), newcomer) < 200);
}

#[test]
fn custom_with_equal_keys() {
    assert!(steps_to_the_end(PolicyName::Custom, 12, long(), short) < 200);
}

#[test]
fn a_class_of_priority() {
    let class = |request| Request { priority: 3, ..request };
    assert!(steps_to_the_end(PolicyName::Priority, 12, class(long()), |id| class(short(id))) < 200);
}

#[test]
fn a_class_of_priority_with_targets() {
    let class = |request| Request { ttft_target: Some(0.5), tpot_target: Some(0.1), ..request };
    assert!(steps_to_the_end(PolicyName::Priority, 12, class(long()), |id| class(short(id))) < 200);
}

/// One that needs every block there is in the end.
#[test]
fn what_fills_the_cache() {
    for policy in [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom] {
        assert!(steps_to_the_end(policy, 12, request(VICTIM, 30, 18), short) < 800, "{policy:?}");
    }
}

/// As many tokens a step as sequences that run, so that prompts get what streams leave.
#[test]
fn prompts_beside_streams_under_a_small_budget() {
    for policy in [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom] {
        let settings = Config { max_num_batched_tokens: 3, ..config(policy, 64, 6) };
        let mut engine = Engine::new(settings);
        let mut next = 1;
        engine.add_now(long());
        let steps = engine.finish_request(VICTIM, 4000, |engine| {
            engine.add_now(short(next));
            next += 1;
        });
        println!("{policy:?}: {steps} steps, 3 tokens each");
        assert!(steps < 800, "{policy:?}");
    }
}

/// What was preempted has had more than any newcomer, and still comes back.
#[test]
fn fair_after_preemption() {
    let settings = Config { enable_prefix_caching: false, ..config(PolicyName::Fair, 12, 3) };
    let mut engine = Engine::new(settings);
    engine.add_now(long());
    let mut next = 1;
    let steps = engine.finish_request(VICTIM, 4000, |engine| {
        for _ in 0..2 {
            engine.add_now(request(next, 5, 20));
            next += 1;
        }
    });
    let preempted = engine.served[&VICTIM].num_admissions - 1;
    println!("fair: {steps} steps, the victim preempted {preempted} times");
    assert!(preempted > 0 && steps < 400, "{preempted} preemptions in {steps} steps");
}
