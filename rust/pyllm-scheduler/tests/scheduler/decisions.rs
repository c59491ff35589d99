//! Decisions of the scheduler where several would give the right tokens: order, reuse and omissions.

mod adapters;
mod beams;
mod drafts;
mod host_blocks;
mod loads;
mod logprob_room;
mod outputs;
mod pooling;
mod preemption;
mod reasons;
mod saves;
mod start_times;
mod states;
mod stateful;
mod windows;

use pyllm_scheduler::{ClientId, Config, DeltaColumns, Error, Finish, Plan, Request, RequestId, Scheduler, Stats};

use crate::sections::Sections;

const CLIENT: ClientId = ClientId(0);

fn scheduler(num_blocks: u32, max_num_seqs: u32, max_num_batched_tokens: u32) -> Scheduler {
    Scheduler::new(config(num_blocks, max_num_seqs, max_num_batched_tokens)).expect("the limits are in range")
}

fn config(num_blocks: u32, max_num_seqs: u32, max_num_batched_tokens: u32) -> Config {
    Config {
        block_size: 4,
        num_blocks,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len: 64,
        vocab_size: 100,
        ..Config::default()
    }
}

fn request(id: u64, prompt: impl Into<Vec<i32>>, max_tokens: u32) -> Request {
    Request { id: RequestId(id), prompt: prompt.into(), n: 1, max_tokens, ..Request::default() }
}

fn plan(scheduler: &mut Scheduler) -> Plan {
    scheduler.schedule(0.0).expect("time stands still").expect("something may run")
}

/// Commits a plan whose every sampled token is `token`.
fn commit(scheduler: &mut Scheduler, plan: &Plan, token: i32) {
    let sections = Sections::new(plan);
    let tokens = vec![token; sections.uniforms.len()];
    scheduler.commit(plan.step, sections.ints("sampled_starts"), &tokens, 0.0, None, None).expect("the step is due");
}

/// Runs all waiting requests, one step at a time.
fn run_to_the_end(scheduler: &mut Scheduler, token: i32) -> DeltaColumns {
    while scheduler.stats().num_requests > 0 {
        let plan = plan(scheduler);
        commit(scheduler, &plan, token);
    }
    scheduler.take_deltas(CLIENT).expect("there are deltas").clone()
}

#[test]
fn the_queue_goes_by_arrival_not_by_insertion() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(Request { arrival: 2.0, ..request(1, [1, 1], 1) })?;
    scheduler.add(Request { arrival: 1.0, ..request(2, [2, 2], 1) })?;
    let first = plan(&mut scheduler);
    assert_eq!(Sections::new(&first).ints("tokens"), [2, 2]);
    Ok(())
}

#[test]
fn a_prefix_is_shared_within_the_step_that_computes_it() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(request(1, [1, 2, 3, 4, 5], 1))?;
    scheduler.add(request(2, [1, 2, 3, 4, 6], 1))?;
    let plan = plan(&mut scheduler);
    let sections = Sections::new(&plan);
    assert_eq!(sections.ints("tokens"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(sections.ints("table_blocks")[0], sections.ints("table_blocks")[2]);
    Ok(())
}

#[test]
fn a_prefix_is_not_shared_with_later_steps_before_it_is_committed() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 3, 64);
    scheduler.add(request(0, [9], 1))?;
    run_to_the_end(&mut scheduler, 9);
    scheduler.add(request(1, [1, 2, 3, 4, 5], 4))?;
    let first = plan(&mut scheduler);
    scheduler.add(request(2, [1, 2, 3, 4, 6], 4))?;
    let second = plan(&mut scheduler);
    assert_eq!(Sections::new(&second).ints("tokens"), [-1, 1, 2, 3, 4, 6]);
    commit(&mut scheduler, &first, 9);
    scheduler.add(request(3, [1, 2, 3, 4, 7], 4))?;
    let third = plan(&mut scheduler);
    assert_eq!(Sections::new(&third).ints("tokens"), [-1, -1, 7]);
    Ok(())
}

#[test]
fn blocks_that_tokens_in_flight_complete_are_found_again() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(request(1, [1, 2, 3], 2))?;
    let first = plan(&mut scheduler);
    let second = plan(&mut scheduler); // computes the fourth token, whose id is not known yet
    commit(&mut scheduler, &first, 7);
    commit(&mut scheduler, &second, 8);
    scheduler.add(request(2, [1, 2, 3, 7, 9], 1))?;
    let deltas = run_to_the_end(&mut scheduler, 5);
    assert_eq!(deltas.requests, [1, 2]);
    assert_eq!(deltas.cached_tokens, [0, 4]);
    Ok(())
}

#[test]
fn the_tail_of_a_chain_is_evicted_first() -> Result<(), Error> {
    let mut scheduler = scheduler(4, 1, 64);
    let long: Vec<i32> = (0..16).collect();
    scheduler.add(request(1, long.clone(), 1))?;
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(2, [50; 5], 1))?; // takes two of the four blocks
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(3, long, 1))?;
    assert_eq!(run_to_the_end(&mut scheduler, 5).cached_tokens, [8]);
    Ok(())
}

#[test]
fn a_request_is_admitted_when_all_of_it_fits_not_only_a_chunk() -> Result<(), Error> {
    let mut scheduler = scheduler(5, 2, 6);
    scheduler.add(request(1, [1; 5], 2))?;
    scheduler.add(request(2, (20..36).collect::<Vec<_>>(), 1))?;
    for num_tokens in [5, 1] {
        let plan = plan(&mut scheduler);
        assert_eq!((plan.num_rows(), plan.num_tokens()), (1, num_tokens));
        commit(&mut scheduler, &plan, 5);
    }
    let chunk = plan(&mut scheduler);
    assert_eq!(Sections::new(&chunk).ints("tokens"), (20..26).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn the_sequence_admitted_last_is_preempted_and_goes_on_where_it_was() -> Result<(), Error> {
    let mut scheduler = scheduler(4, 2, 64);
    scheduler.add(request(1, [1; 7], 6))?;
    scheduler.add(request(2, [2; 7], 6))?;
    let deltas = run_to_the_end(&mut scheduler, 5);
    assert_eq!(deltas.requests, [1, 2]);
    assert_eq!(deltas.offsets, [0, 0]);
    assert_eq!(deltas.token_starts, [0, 6, 12]);
    assert_eq!(deltas.finishes, [Finish::Length as u8; 2]);
    let Stats { num_preemptions, num_steps, num_computed_tokens, .. } = scheduler.stats();
    assert_eq!(num_preemptions, 1);
    assert!(num_steps > 6 && num_computed_tokens > 2 * (7 + 5));
    Ok(())
}

#[test]
fn a_fork_writes_to_a_copy_of_the_shared_block_and_the_last_to_the_block_itself() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(Request { n: 3, ..request(1, [1, 2, 3, 4, 5], 3) })?;
    let first = plan(&mut scheduler);
    assert_eq!(Sections::new(&first).ints("logits_rows"), [4, 4, 4]);
    commit(&mut scheduler, &first, 7);
    assert_eq!(scheduler.stats().num_used_blocks, 2);
    let second = plan(&mut scheduler);
    let sections = Sections::new(&second);
    assert_eq!(sections.pairs("slot_copies").len(), 2);
    assert_eq!(sections.pairs("block_copies").len(), 2);
    assert_eq!(sections.ints("table_indices"), [1, 1]);
    assert_eq!(scheduler.stats().num_used_blocks, 4);
    Ok(())
}

#[test]
fn held_requests_run_only_after_their_release() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(request(1, [1, 2], 2))?;
    let first = plan(&mut scheduler);
    scheduler.hold(CLIENT, RequestId(1), "compiling")?;
    commit(&mut scheduler, &first, 7);
    assert_eq!(scheduler.schedule(0.0)?, None);
    let Stats { num_held, num_used_blocks, num_preemptions, .. } = scheduler.stats();
    assert_eq!((num_held, num_used_blocks, num_preemptions), (1, 0, 1));
    scheduler.release(CLIENT, RequestId(1), "compiling")?;
    assert_eq!(run_to_the_end(&mut scheduler, 7).tokens, [7, 7]);
    Ok(())
}

#[test]
fn without_prefix_caching_nothing_is_kept_or_looked_up() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { enable_prefix_caching: false, ..config(8, 1, 64) })?;
    for id in 1..3 {
        scheduler.add(request(id, [1; 9], 1))?;
        assert_eq!(run_to_the_end(&mut scheduler, 5).cached_tokens, [0]);
    }
    let Stats { num_cached_blocks, prefix_queries, prefix_hits, num_uncached_tokens, .. } = scheduler.stats();
    assert_eq!((num_cached_blocks, prefix_queries, prefix_hits, num_uncached_tokens), (0, 0, 0, 18));
    Ok(())
}
