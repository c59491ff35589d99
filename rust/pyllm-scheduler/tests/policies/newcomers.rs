//! A stream of new tenants under the policy `fair`: they do not starve the others, and are forgotten.

use pyllm_scheduler::{Config, PolicyName, Request};

use crate::engine::{Engine, config, request};

fn of(tenant: impl Into<String>, request: Request) -> Request {
    Request { tenant: tenant.into(), ..request }
}

/// Three slots, a constant backlog of thirty, and every new request from a tenant of its own.
fn crowded() -> (Engine, impl FnMut(&mut Engine)) {
    let mut engine = Engine::new(config(PolicyName::Fair, 64, 3));
    let mut next = 100;
    let mut come = move |engine: &mut Engine| {
        while engine.scheduler.stats().num_waiting < 30 {
            engine.add_now(of(format!("tenant {next}"), request(next, 4, 4)));
            next += 1;
        }
    };
    come(&mut engine);
    (engine, come)
}

#[test]
fn a_tenant_that_was_served_has_its_turn_again() {
    let (mut engine, come) = crowded();
    engine.add_now(of("steady", request(1, 4, 12)));
    engine.add_now(of("steady", request(2, 4, 12)));
    let steps = engine.finish_request(2, 2000, come);
    assert!(steps < 1000, "the second request of a tenant took {steps} steps");
}

#[test]
fn tenants_that_are_gone_are_forgotten() {
    let (mut engine, mut come) = crowded();
    let mut most = 0;
    for _ in 0..1500 {
        come(&mut engine);
        engine.step();
        most = most.max(engine.scheduler.tenants().len());
    }
    assert!(most < 200, "{most} tenants were remembered, and 33 had requests");
}

#[test]
fn a_weight_counts_for_a_tenant_that_is_idle_when_it_changes() {
    let mut engine = Engine::new(config(PolicyName::Fair, 64, 2));
    engine.add_now(of("a", request(1, 40, 8)));
    engine.add_now(of("b", request(2, 4, 60)));
    engine.finish_request(1, 100, |_| {});
    let service = |engine: &Engine| {
        let tenants = engine.scheduler.tenants();
        tenants.iter().find(|one| one.tenant == "a").map(|one| one.service).expect("it is ahead of b")
    };
    let before = service(&engine);
    let config = engine.scheduler.config().clone();
    let tenant_weights = [("a".to_owned(), 10)].into();
    engine.scheduler.reconfigure(Config { tenant_weights, ..config }).expect("the weight is in range");
    engine.add_now(of("a", request(4, 20, 8)));
    engine.steps(6);
    let charged = service(&engine) - before;
    assert!((1..10).contains(&charged), "20 tokens and those after them were charged as {charged} at weight 10");
}
