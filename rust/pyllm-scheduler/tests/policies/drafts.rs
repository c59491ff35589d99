//! Drafts use the budget that is left over.

use pyllm_scheduler::{ClientId, Config, PolicyName, RequestId};

use crate::engine::{Engine, config, request};

#[test]
fn drafts_wait_until_every_stream_has_its_next_token() {
    let settings = Config { max_num_batched_tokens: 8, ..config(PolicyName::Fcfs, 64, 4) };
    let mut engine = Engine::new(settings);
    for id in 0..3 {
        engine.add_now(request(id, 2, 40));
    }
    engine.steps(2);
    let before = [1, 2].map(|id| engine.num_tokens(id));
    for _ in 0..10 {
        engine.scheduler.propose(ClientId(0), RequestId(0), 0, &[1; 7]).expect("nothing is in flight");
        let rows = engine.step();
        assert_eq!(rows.iter().map(|row| row.num_tokens).sum::<i32>(), 8, "what is left goes to the drafts");
    }
    assert_eq!([1, 2].map(|id| engine.num_tokens(id)), before.map(|tokens| tokens + 10));
}
