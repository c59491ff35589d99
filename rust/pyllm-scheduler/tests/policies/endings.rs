//! Ends of requests other than by length: deadlines, and stop tokens that do not count before `min_tokens`.

use pyllm_scheduler::{Config, Finish, PolicyName, Request, RequestId};

use crate::engine::{CLIENT, Engine, config, request, token};

fn with_deadline(deadline: f64, request: Request) -> Request {
    Request { deadline: Some(deadline), ..request }
}

fn ended_by_deadline(engine: &Engine, id: u64) -> bool {
    engine.served[&id].finish == Some(Finish::Deadline as u8)
}

#[test]
fn a_deadline_ends_what_runs_and_what_waits_at_the_first_schedule_past_it() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 1));
    engine.step_seconds = 1.0;
    engine.add(with_deadline(3.0, request(1, 4, 40)));
    engine.add(with_deadline(2.5, request(2, 4, 40)));
    engine.steps(3); // at 0, 1 and 2
    assert!(engine.served.values().all(|served| served.finish.is_none()));
    assert_eq!(engine.num_tokens(1), 3);
    engine.step(); // at 3, which is past both
    assert!(ended_by_deadline(&engine, 1) && ended_by_deadline(&engine, 2));
    assert_eq!((engine.num_tokens(1), engine.num_tokens(2)), (3, 0));
    let stats = engine.scheduler.stats();
    assert_eq!((stats.num_expired, stats.num_requests, stats.num_used_blocks), (2, 0, 0));
}

#[test]
fn a_deadline_frees_the_place_for_the_step_that_notices_it() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 1));
    engine.step_seconds = 1.0;
    engine.add(with_deadline(2.0, request(1, 4, 40)));
    engine.add(request(2, 4, 2));
    engine.steps(2);
    let rows = engine.step();
    assert_eq!(rows.iter().map(|row| row.request).collect::<Vec<_>>(), [2]);
}

#[test]
fn deadlines_end_held_requests_and_those_on_the_host() {
    let settings = Config { num_host_blocks: 16, enable_prefix_caching: false, ..config(PolicyName::Fcfs, 64, 2) };
    let mut engine = Engine::new(settings);
    engine.add(with_deadline(5.0, request(1, 8, 40)));
    engine.step();
    engine.scheduler.hold(CLIENT, RequestId(1), "swapped and held").expect("it is there");
    engine.now = 5.0;
    assert!(engine.step().is_empty());
    assert!(ended_by_deadline(&engine, 1));
    engine.scheduler.audit().expect("the books add up");
    assert_eq!(engine.scheduler.stats().num_free_host_blocks, 16);
}

#[test]
fn a_deadline_ends_all_samples_and_drops_what_is_in_flight() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 4));
    engine.add(Request { n: 3, ..with_deadline(1.0, request(1, 6, 40)) });
    engine.steps(2);
    let in_flight = engine.scheduler.schedule(engine.now).expect("time goes on").expect("it runs");
    assert_eq!(engine.scheduler.schedule(1.0).expect("time goes on"), None);
    engine.scheduler.commit(in_flight.step, &[0, 1, 2, 3], &[7, 7, 7], 0.0, None, None).expect("the step is due");
    let deltas = engine.scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!(deltas.finishes, [Finish::Deadline as u8; 3]);
    assert!(deltas.tokens.is_empty());
}

/// The number of tokens and the finish reason, with a model whose every token is a stop token.
fn run_to_a_stop(min_tokens: u32) -> (usize, Option<u8>) {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 1));
    let stop_token_ids = (4..40).map(|position| token(1, position)).collect();
    engine.add(Request { min_tokens, stop_token_ids, ..request(1, 4, 10) });
    engine.finish();
    (engine.num_tokens(1), engine.served[&1].finish)
}

#[test]
fn stop_tokens_end_a_sample_from_min_tokens_on() {
    assert_eq!(run_to_a_stop(0), (1, Some(Finish::Stop as u8)));
    assert_eq!(run_to_a_stop(2), (2, Some(Finish::Stop as u8)));
    assert_eq!(run_to_a_stop(6), (6, Some(Finish::Stop as u8)));
    assert_eq!(run_to_a_stop(10), (10, Some(Finish::Stop as u8)));
}

#[test]
fn min_tokens_does_not_lengthen_what_ends_by_length() {
    let mut engine = Engine::new(config(PolicyName::Fcfs, 64, 1));
    engine.add(Request { min_tokens: 5, ..request(1, 4, 5) });
    engine.finish();
    assert_eq!((engine.num_tokens(1), engine.served[&1].finish), (5, Some(Finish::Length as u8)));
}
