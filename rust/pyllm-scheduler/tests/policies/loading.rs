//! Loads from an external store beside running requests.

use pyllm_scheduler::{ClientId, Config, PolicyName, RequestId};

use crate::engine::{Engine, config, request};

#[test]
fn what_an_asynchronous_load_continues_is_not_evicted_meanwhile() {
    let settings = Config { enable_prefix_caching: true, ..config(PolicyName::Fcfs, 24, 4) };
    let mut engine = Engine::new(settings);
    engine.add_now(request(1, 17, 1)); // it leaves four blocks in the prefix cache
    engine.finish();
    let prompt = |id, length| {
        let mut request = request(id, length, 1);
        request.prompt[..17].copy_from_slice(&self::request(1, 17, 1).prompt);
        request
    };
    engine.add_now(prompt(2, 41));
    engine.scheduler.offer_load(ClientId(0), RequestId(2), 40, true).expect("it has not begun");
    engine.step();
    let loads = engine.scheduler.take_loads();
    assert_eq!((loads.len(), loads[0].first_token, loads[0].num_tokens), (1, 16, 24));
    engine.add_now(request(3, 54, 1)); // all the other blocks
    engine.finish_request(3, 20, |_| {});
    engine.scheduler.finish_load(loads[0].id, 24).expect("it is under way");
    engine.finish_request(2, 20, |_| {});
    assert_eq!(engine.served[&2].cached, Some(40));
}

#[test]
fn what_is_loaded_for_a_request_counts_as_cached_whether_it_waits_for_it_or_not() {
    for asynchronous in [true, false] {
        let settings = Config { enable_prefix_caching: true, ..config(PolicyName::Fcfs, 24, 4) };
        let mut engine = Engine::new(settings);
        engine.add_now(request(1, 41, 1));
        engine.scheduler.offer_load(ClientId(0), RequestId(1), 40, asynchronous).expect("it has not begun");
        engine.step();
        for load in engine.scheduler.take_loads() {
            if load.step.is_none() {
                engine.scheduler.finish_load(load.id, 40).expect("it is under way");
            }
        }
        engine.finish_request(1, 20, |_| {});
        assert_eq!(engine.served[&1].cached, Some(40));
        let stats = engine.scheduler.stats();
        assert_eq!((stats.prefix_queries, stats.prefix_hits, stats.loaded_prefix_hits), (41, 40, 40));
        assert_eq!(stats.num_uncached_tokens, 1);
    }
}
