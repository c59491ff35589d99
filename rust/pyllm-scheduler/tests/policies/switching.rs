//! A change of policy while requests wait and run: the queue is reordered, and tenants start equal.

use proptest::prelude::*;

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::cases::cases;
use crate::engine::{Engine, config, request};

const POLICIES: [PolicyName; 5] =
    [PolicyName::Fcfs, PolicyName::Priority, PolicyName::Shortest, PolicyName::Fair, PolicyName::Custom];

fn switch(engine: &mut Engine, policy: PolicyName) {
    let settings = Config { policy, ..engine.scheduler.config().clone() };
    engine.scheduler.reconfigure(settings).expect("the policy is live");
    engine.scheduler.audit().expect("the books add up");
}

/// Four requests, each of which another policy puts first.
fn waiting(policy: PolicyName) -> Engine {
    let mut engine = Engine::new(config(policy, 256, 1));
    engine.add(Request { arrival: -0.4, ..request(1, 20, 20) });
    engine.add(Request { arrival: -0.3, priority: -1, ..request(2, 22, 20) });
    engine.add(Request { arrival: -0.2, ..request(3, 2, 2) });
    engine.add(Request { arrival: -0.1, policy_key: -1.0, ..request(4, 24, 20) });
    engine
}

#[test]
fn what_waits_is_ordered_anew() {
    for before in POLICIES {
        for (policy, first) in
            [(PolicyName::Fcfs, 1), (PolicyName::Priority, 2), (PolicyName::Shortest, 3), (PolicyName::Custom, 4)]
        {
            let mut engine = waiting(before);
            switch(&mut engine, policy);
            assert_eq!(engine.step()[0].request, first, "{before:?} to {policy:?}");
        }
    }
}

#[test]
fn what_runs_is_ordered_anew() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 8, 2));
    engine.add(Request { arrival: -2.0, priority: 2, ..request(1, 8, 20) });
    engine.add(Request { arrival: -1.0, priority: 1, ..request(2, 8, 20) });
    engine.steps(2);
    switch(&mut engine, PolicyName::Priority);
    while engine.scheduler.stats().num_preemptions == 0 {
        engine.step();
    }
    assert_eq!((engine.state(1), engine.state(2)), ("preempted", "running"));
}

fn service(engine: &Engine) -> Vec<(String, u64)> {
    let tenants = engine.scheduler.tenants();
    let mut services: Vec<_> = tenants.into_iter().map(|lane| (lane.tenant, lane.service)).collect();
    services.sort();
    services
}

#[test]
fn tenants_get_lanes_of_their_own_under_fair_alone() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 256, 2));
    for id in 0..60 {
        let tenant = if id < 30 { "first" } else { "second" };
        engine.add(Request { tenant: tenant.to_owned(), ..request(id, 4, 4) });
    }
    engine.steps(8);
    assert_eq!(service(&engine).len(), 1);
    switch(&mut engine, PolicyName::Fair);
    let names: Vec<_> = service(&engine).into_iter().map(|lane| lane.0).collect();
    assert_eq!(names, ["first", "second"]);
    // Two of the first tenant run; from here on both tenants get the same service, up to that of two slots.
    engine.steps(40);
    let lanes = service(&engine);
    assert!(lanes[0].1 > 50 && lanes[0].1.abs_diff(lanes[1].1) <= 2 * 12, "{lanes:?}");
    switch(&mut engine, PolicyName::Fcfs);
    assert_eq!(engine.scheduler.tenants().iter().filter(|lane| lane.num_waiting > 0).count(), 1);
    let next = engine.step();
    assert!(next.iter().all(|row| row.request < 60));
    engine.finish();
}

/// Other policies do not count tenants' service, so they start equal.
#[test]
fn tenants_begin_anew_after_another_policy() {
    let mut engine = Engine::new(config(PolicyName::Fair, 256, 2));
    for id in 0..4 {
        engine.add(Request { tenant: "heavy".to_owned(), ..request(id, 4, 200) });
    }
    engine.step();
    engine.add(Request { tenant: "light".to_owned(), ..request(9, 4, 4) });
    engine.steps(30);
    let lanes = service(&engine);
    assert!(lanes[0].1 > lanes[1].1, "{lanes:?}");
    switch(&mut engine, PolicyName::Fcfs);
    switch(&mut engine, PolicyName::Fair);
    let lanes = service(&engine);
    assert_eq!(lanes[0].1, lanes[1].1);
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_switches_leave_the_books_right_and_everything_ends(
        num_blocks in 12..40_u32,
        calls in prop::collection::vec((0..POLICIES.len(), 0..3_u64, 1..20_i32, 1..12_u32, 0..5_u32), 1..30),
    ) {
        let mut engine = Engine::new(config(PolicyName::Fcfs, num_blocks, 3));
        for (id, &(policy, tenant, prompt_length, max_tokens, steps)) in calls.iter().enumerate() {
            let tenant = format!("tenant {tenant}");
            let priority = prompt_length % 3;
            engine.add_now(Request { tenant, priority, ..request(id as u64, prompt_length, max_tokens) });
            switch(&mut engine, POLICIES[policy]);
            engine.steps(steps);
        }
        engine.finish();
        for (id, call) in calls.iter().enumerate() {
            prop_assert_eq!(engine.num_tokens(id as u64), call.3 as usize);
        }
    }
}
