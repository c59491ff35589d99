//! Start times of requests: seconds until their first step, and from there to their first output, sent once.

use pyllm_scheduler::{
    Config, Embeddings, Error, Output, Plan, Pooling, Request, RequestId, Scheduler, StartTime, StartTimes,
};

use super::{CLIENT, commit, config, request, scheduler};
use crate::sections::Sections;

fn plan_at(scheduler: &mut Scheduler, now: f64) -> Plan {
    scheduler.schedule(now).expect("time goes on").expect("something may run")
}

/// Commits a plan that took `seconds`, whose every sampled token is 5.
fn commit_after(scheduler: &mut Scheduler, plan: &Plan, seconds: f64) {
    let sections = Sections::new(plan);
    let tokens = vec![5; sections.uniforms.len()];
    let starts = sections.ints("sampled_starts");
    scheduler.commit(plan.step, starts, &tokens, seconds, None, None).expect("the step is due");
}

/// Each request whose output has begun since the last call, with its seconds in the queue and in prefill.
fn started(scheduler: &mut Scheduler) -> Vec<(u64, f32, f32)> {
    let Some(deltas) = scheduler.take_deltas(CLIENT) else { return Vec::new() };
    let started = (0..deltas.len()).filter_map(|row| {
        let StartTime { queue, prefill } = deltas.start_times.of(row)?;
        Some((deltas.requests[row], queue, prefill))
    });
    started.collect()
}

#[test]
fn what_finds_the_batch_full_waits_in_the_queue_until_its_first_step() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(Request { arrival: 1.0, ..request(1, [1, 1], 2) })?;
    scheduler.add(Request { arrival: 1.5, ..request(2, [2, 2], 1) })?;
    for (now, expected) in [(2.0, vec![(1, 1.0, 0.25)]), (3.0, vec![]), (4.0, vec![(2, 2.5, 0.25)])] {
        let plan = plan_at(&mut scheduler, now);
        commit_after(&mut scheduler, &plan, 0.25);
        assert_eq!(started(&mut scheduler), expected);
    }
    Ok(())
}

#[test]
fn a_step_without_first_outputs_has_no_columns_of_them() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(request(1, [1, 1], 3))?;
    let first = plan_at(&mut scheduler, 0.0);
    commit_after(&mut scheduler, &first, 0.5);
    let begun = StartTimes { rows: vec![0], queue: vec![0.0], prefill: vec![0.5] };
    assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").start_times, begun);
    let second = plan_at(&mut scheduler, 1.0);
    commit_after(&mut scheduler, &second, 0.5);
    assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").start_times, StartTimes::default());
    Ok(())
}

#[test]
fn a_prompt_in_chunks_takes_from_the_first_to_the_end_of_the_last() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 4);
    scheduler.add(Request { arrival: 0.5, ..request(1, [1; 10], 1) })?;
    for now in [1.0, 2.0, 3.0] {
        assert_eq!(started(&mut scheduler), []);
        let chunk = plan_at(&mut scheduler, now);
        commit_after(&mut scheduler, &chunk, 0.5);
    }
    assert_eq!(started(&mut scheduler), [(1, 0.5, 2.5)]);
    Ok(())
}

#[test]
fn a_step_that_was_planned_early_ends_after_the_one_before_it() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(request(1, [1, 1], 4))?;
    let first = plan_at(&mut scheduler, 0.0);
    scheduler.add(request(2, [2, 2], 4))?;
    let second = plan_at(&mut scheduler, 0.25);
    commit_after(&mut scheduler, &first, 1.0);
    commit_after(&mut scheduler, &second, 0.5);
    assert_eq!(started(&mut scheduler), [(1, 0.0, 1.0), (2, 0.25, 1.25)]);
    Ok(())
}

#[test]
fn where_steps_are_not_measured_the_last_plan_tells_the_time() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 2);
    scheduler.add(request(1, [1; 4], 1))?;
    for (now, seconds) in [(1.0, f64::NAN), (3.0, f64::NEG_INFINITY)] {
        let chunk = plan_at(&mut scheduler, now);
        commit_after(&mut scheduler, &chunk, seconds);
    }
    assert_eq!(started(&mut scheduler), [(1, 1.0, 2.0)]);
    Ok(())
}

#[test]
fn what_is_taken_back_has_left_the_queue_with_its_first_step() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 4);
    scheduler.add(request(1, [1; 6], 2))?;
    let chunk = plan_at(&mut scheduler, 1.0);
    commit_after(&mut scheduler, &chunk, 0.5);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    assert_eq!(scheduler.stats().num_preemptions, 1);
    scheduler.release(CLIENT, RequestId(1), "test")?;
    scheduler.lose_device();
    for now in [4.0, 5.0] {
        let chunk = plan_at(&mut scheduler, now);
        commit_after(&mut scheduler, &chunk, 0.5);
    }
    assert_eq!(started(&mut scheduler), [(1, 1.0, 4.5)]);
    // Recomputation of a request whose output has begun before.
    scheduler.lose_device();
    let again = plan_at(&mut scheduler, 6.0);
    commit_after(&mut scheduler, &again, 0.5);
    let rest = plan_at(&mut scheduler, 7.0);
    commit_after(&mut scheduler, &rest, 0.5);
    assert_eq!((started(&mut scheduler), scheduler.stats().num_requests), (vec![], 0));
    Ok(())
}

#[test]
fn a_request_of_several_samples_begins_once() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(Request { n: 3, ..request(1, [1; 5], 2) })?;
    let first = plan_at(&mut scheduler, 2.0);
    commit_after(&mut scheduler, &first, 0.5);
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!((&deltas.samples[..], &deltas.start_times.rows[..]), (&[0, 1, 2][..], &[0][..]));
    Ok(())
}

#[test]
fn it_begins_with_the_first_sample_that_is_left() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(Request { n: 3, ..request(1, [1; 5], 2) })?;
    scheduler.abort(CLIENT, RequestId(1), Some(0));
    let first = plan_at(&mut scheduler, 2.0);
    commit_after(&mut scheduler, &first, 0.5);
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!(&deltas.samples[..], [0, 1, 2]);
    assert_eq!(deltas.start_times, StartTimes { rows: vec![1], queue: vec![2.0], prefill: vec![0.5] });
    Ok(())
}

#[test]
fn what_is_resumed_with_output_has_begun_before() -> Result<(), Error> {
    let outputs = |tokens: &[&[i32]]| {
        tokens.iter().map(|tokens| Output { tokens: tokens.to_vec(), finished: false }).collect::<Vec<_>>()
    };
    for (given, begins) in [(outputs(&[&[7], &[]]), vec![]), (outputs(&[&[], &[]]), vec![(1, 2.0, 0.5)])] {
        let mut scheduler = scheduler(16, 2, 64);
        scheduler.add(Request { n: 2, outputs: given, ..request(1, [1; 5], 3) })?;
        let first = plan_at(&mut scheduler, 2.0);
        commit_after(&mut scheduler, &first, 0.5);
        assert_eq!(started(&mut scheduler), begins);
    }
    Ok(())
}

#[test]
fn a_sample_that_ended_without_output_begins_nothing() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    let outputs = vec![Output { tokens: vec![], finished: true }, Output { tokens: vec![], finished: false }];
    scheduler.add(Request { n: 2, outputs, ..request(1, [1; 5], 3) })?;
    scheduler.add(Request { deadline: Some(1.0), ..request(2, [2; 5], 3) })?;
    let first = plan_at(&mut scheduler, 2.0);
    commit_after(&mut scheduler, &first, 0.5);
    assert_eq!(started(&mut scheduler), [(1, 2.0, 0.5)], "the deadline of the other came before its first step");
    Ok(())
}

#[test]
fn a_worker_that_is_not_ready_makes_the_first_output_late() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(Request { stateful: true, ..request(1, [1, 2], 1) })?;
    let first = plan_at(&mut scheduler, 1.0);
    scheduler.commit(first.step, &[0, 0], &[], 0.5, None, None)?;
    assert_eq!(started(&mut scheduler), []);
    let second = plan_at(&mut scheduler, 2.0);
    commit_after(&mut scheduler, &second, 0.5);
    assert_eq!(started(&mut scheduler), [(1, 1.0, 1.5)]);
    Ok(())
}

#[test]
fn an_embedding_is_the_output_of_what_pools() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(Request { pooling: Pooling::Last, arrival: 0.5, ..request(1, [1, 2], 0) })?;
    let only = plan_at(&mut scheduler, 1.0);
    let embeddings = Embeddings { starts: vec![0, 1], values: vec![1.0] };
    scheduler.commit(only.step, &[0, 1], &[0], 0.5, None, Some(&embeddings))?;
    assert_eq!(started(&mut scheduler), [(1, 0.5, 0.5)]);
    Ok(())
}

#[test]
fn steps_are_counted_by_their_tokens() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { enable_prefix_caching: false, ..config(16, 2, 16) })?;
    scheduler.add(request(1, [1; 20], 3))?;
    for _ in 0..4 {
        let plan = plan_at(&mut scheduler, 0.0);
        commit(&mut scheduler, &plan, 5);
    }
    assert_eq!(scheduler.schedule(0.0)?, None);
    let stats = scheduler.stats();
    let figure = |name: &str| stats.named().find(|figure| figure.0 == name).map(|figure| figure.1);
    let up_to = |bound: &str| figure(&format!("iteration_tokens_le_{bound}"));
    // 16 tokens, 4, and one in each of two steps.
    assert_eq!([up_to("1"), up_to("8"), up_to("16"), up_to("inf")], [Some(2), Some(3), Some(4), Some(4)]);
    assert_eq!((figure("num_steps"), figure("num_computed_tokens")), (Some(4), Some(22)));
    Ok(())
}
