//! No starvation: beside new requests that could keep the engine busy for ever, an early or long one ends within a
//! bounded number of steps.

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::engine::{Engine, config, request};

const VICTIM: u64 = 0;

/// The victim ends in fewer than `most` steps, while two more requests arrive every step, twice what three slots can
/// take.
fn assert_ends_within(
    most: u32,
    policy: PolicyName,
    num_blocks: u32,
    victim: Request,
    newcomer: impl Fn(u64) -> Request,
) {
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
    assert!(stats.num_waiting > 10, "{policy:?}: {} wait after {steps} steps: the engine keeps up", stats.num_waiting);
    assert!(steps < most, "{policy:?}: {steps} steps, {} preemptions", stats.num_preemptions);
}

/// Three of these exceed twelve blocks.
fn short(id: u64) -> Request {
    request(id, 5, 8)
}

fn long() -> Request {
    request(VICTIM, 16, 24)
}

#[test]
fn first_come_first_served() {
    assert_ends_within(200, PolicyName::Fcfs, 12, long(), short);
}

#[test]
fn shortest_ages() {
    assert_ends_within(400, PolicyName::Shortest, 12, long(), short);
}

#[test]
fn fair_within_a_tenant() {
    assert_ends_within(400, PolicyName::Fair, 12, long(), short);
}

#[test]
fn fair_beside_another_tenant() {
    let newcomer = |id| Request { tenant: "many".to_owned(), ..short(id) };
    assert_ends_within(200, PolicyName::Fair, 12, long(), newcomer);
}

#[test]
fn custom_with_equal_keys() {
    assert_ends_within(200, PolicyName::Custom, 12, long(), short);
}

#[test]
fn a_class_of_priority() {
    let class = |request| Request { priority: 3, ..request };
    assert_ends_within(200, PolicyName::Priority, 12, class(long()), |id| class(short(id)));
}

#[test]
fn a_class_of_priority_with_targets() {
    let class = |request| Request { ttft_target: Some(0.5), tpot_target: Some(0.1), ..request };
    assert_ends_within(200, PolicyName::Priority, 12, class(long()), |id| class(short(id)));
}

/// A request that needs all blocks before its end.
#[test]
fn what_fills_the_cache() {
    for policy in [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom] {
        assert_ends_within(800, policy, 12, request(VICTIM, 30, 18), short);
    }
}

/// The token budget equals the number of running streams, so prompts get only what streams leave.
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
        assert!(steps < 800, "{policy:?}: {steps} steps");
    }
}

/// A preempted request has had more service than any new one, and still continues.
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
    assert!(preempted > 0 && steps < 400, "{preempted} preemptions in {steps} steps");
}
