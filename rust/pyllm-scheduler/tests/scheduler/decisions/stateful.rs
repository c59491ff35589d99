//! Stateful requests, whose rows yield no token or more than planned, and log-probabilities of prompts.

use pyllm_scheduler::{Config, Error, LogprobEntries, Logprobs, Plan, Reason, Request, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, run_to_the_end, scheduler};
use crate::sections::Sections;

fn stateful(id: u64, prompt: impl Into<Vec<i32>>, max_tokens: u32) -> Request {
    Request { stateful: true, ..request(id, prompt, max_tokens) }
}

/// Commits a plan of one row.
fn give(scheduler: &mut Scheduler, plan: &Plan, tokens: &[i32]) -> Result<(), Error> {
    scheduler.commit(plan.step, &[0, tokens.len() as i32], tokens, 0.0, None, None).map(drop)
}

fn tokens(plan: &Plan) -> Vec<i32> {
    Sections::new(plan).ints("tokens").to_vec()
}

#[test]
fn a_row_that_is_not_ready_is_planned_again_when_what_follows_it_is_back() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(stateful(1, [1, 2, 3], 4))?;
    scheduler.add(request(2, [7], 4))?;
    let [first, second] = [plan(&mut scheduler), plan(&mut scheduler)];
    let sections = Sections::new(&first);
    assert_eq!(sections.histories(), [(&[1, 2, 3][..], &[][..]), (&[], &[])]);
    scheduler.commit(first.step, &[0, 0, 1], &[8], 0.0, None, None)?;
    let third = plan(&mut scheduler);
    assert_eq!(tokens(&third), [-1]); // of the other
    assert_eq!(scheduler.explain(CLIENT, RequestId(1))?[0].reason, Some(Reason::Grammar));
    scheduler.commit(second.step, &[0, 2, 3], &[9, 9, 8], 0.0, None, None)?; // the first row is void
    let again = plan(&mut scheduler);
    assert_eq!(tokens(&again), [3, -1]);
    assert_eq!(Sections::new(&again).uniforms[0].to_bits(), sections.uniforms[0].to_bits());
    give(&mut scheduler, &third, &[8])?;
    scheduler.commit(again.step, &[0, 1, 2], &[4, 8], 0.0, None, None)?;
    assert_eq!(run_to_the_end(&mut scheduler, 5).tokens, [4, 5, 5, 5, 8, 8, 8, 8]);
    Ok(())
}

#[test]
fn a_row_of_another_request_must_give_what_was_planned() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(request(1, [1, 2, 3], 4))?;
    let first = plan(&mut scheduler);
    for given in [&[][..], &[4, 5]] {
        assert!(matches!(give(&mut scheduler, &first, given), Err(Error::Sampled { .. })));
    }
    give(&mut scheduler, &first, &[4])?;
    scheduler.add(Request { n: 2, ..stateful(2, [1, 2, 3], 4) })?;
    let fork = plan(&mut scheduler);
    let refused = scheduler.commit(fork.step, &[0, 1, 2], &[5, 5], 0.0, None, None).map(drop);
    assert!(matches!(refused, Err(Error::Sampled { problem, .. }) if problem.contains("asks for 0 or 2")));
    Ok(())
}

#[test]
fn what_is_forced_is_computed_in_one_piece_after_the_token_in_flight() -> Result<(), Error> {
    for num_in_flight in 0..3 {
        let mut scheduler = scheduler(16, 1, 64);
        scheduler.add(stateful(1, [1, 2, 3], 9))?;
        let first = plan(&mut scheduler);
        let in_flight: Vec<_> = (0..num_in_flight).map(|_| plan(&mut scheduler)).collect();
        give(&mut scheduler, &first, &[4, 5, 6, 7])?;
        for stale in &in_flight {
            give(&mut scheduler, stale, &[])?;
        }
        let chunk = plan(&mut scheduler);
        let (computed, places) = (tokens(&chunk), Sections::new(&chunk).ints("positions").to_vec());
        let first = if num_in_flight == 0 { 3 } else { 4 };
        assert_eq!(computed, [4, 5, 6, 7][first as usize - 3..]);
        assert_eq!(places, (first..7).collect::<Vec<_>>());
        commit(&mut scheduler, &chunk, 8);
        assert_eq!(run_to_the_end(&mut scheduler, 8).tokens, [4, 5, 6, 7, 8, 8, 8, 8, 8]);
    }
    Ok(())
}

#[test]
fn accepted_drafts_the_sampled_token_and_forced_ones_follow_one_another() -> Result<(), Error> {
    for (given, next) in [
        (&[5, 6, 9][..], &[9][..]),
        (&[5, 6, 9, 10, 11], &[9, 10, 11]),
        (&[5, 9, 10], &[9, 10]), // the second draft was wrong, so its computed entries are useless
        (&[9, 6, 7, 8, 10], &[9, 6, 7, 8, 10]),
        (&[], &[4, 5, 6, 7]), // not ready: the drafts stay
    ] {
        let mut scheduler = scheduler(16, 4, 64);
        scheduler.add(stateful(1, [1, 2, 3], 20))?;
        let first = plan(&mut scheduler);
        give(&mut scheduler, &first, &[4])?;
        scheduler.propose(CLIENT, RequestId(1), 0, &[5, 6, 7])?;
        let drafts = plan(&mut scheduler);
        assert_eq!(tokens(&drafts), [4, 5, 6, 7]);
        give(&mut scheduler, &drafts, given)?;
        assert_eq!(tokens(&plan(&mut scheduler)), next);
        assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").tokens[1..], *given);
    }
    Ok(())
}

#[test]
fn what_is_forced_ends_where_the_sample_does() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    scheduler.add(stateful(1, [1, 2, 3], 3))?;
    scheduler.add(Request { stop_token_ids: vec![6], ..stateful(2, [1, 2, 3], 9) })?;
    for expected in [[4, 5, 7], [4, 5, 6]] {
        let first = plan(&mut scheduler);
        give(&mut scheduler, &first, &[&expected[..], &[8, 9]].concat())?;
        assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").tokens, expected);
    }
    assert_eq!(scheduler.stats().num_requests, 0);
    Ok(())
}

#[test]
fn blocks_for_what_is_forced_are_taken_from_the_last_that_runs() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { enable_prefix_caching: false, ..config(4, 2, 64) })?;
    scheduler.add(stateful(1, [1; 6], 9))?;
    scheduler.add(request(2, [2; 6], 9))?;
    let first = plan(&mut scheduler);
    scheduler.commit(first.step, &[0, 4, 5], &[3, 4, 5, 6, 7], 0.0, None, None)?;
    let second = plan(&mut scheduler);
    assert_eq!(tokens(&second), [3, 4, 5, 6]);
    assert_eq!(scheduler.stats().num_preemptions, 1);
    commit(&mut scheduler, &second, 8);
    let deltas = run_to_the_end(&mut scheduler, 8);
    assert_eq!((&deltas.requests[..], &deltas.token_starts[..]), (&[1, 2][..], &[0, 9, 18][..]));
    Ok(())
}

/// Log-probabilities of one row: every token has itself as its only entry.
fn told(prompt: &[i32], sampled: &[i32]) -> Logprobs {
    let ids = [prompt, sampled].concat();
    let (number, told) = (ids.len() as i32, prompt.len() as i32);
    let (values, ranks) = (vec![-1.0; ids.len()], vec![1; ids.len()]);
    let entries = LogprobEntries { starts: (0..=number).collect(), ids, values, ranks };
    Logprobs { prompt_starts: vec![0, told], prompt_tokens: prompt.to_vec(), entries }
}

#[test]
fn a_prompt_is_told_of_once_however_often_it_is_computed() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 6);
    let prompt: Vec<i32> = (10..20).collect();
    scheduler.add(request(1, prompt.clone(), 1))?;
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(Request { prompt_logprobs: true, ..stateful(2, prompt, 2) })?;
    let first = plan(&mut scheduler);
    assert_eq!(tokens(&first), [10, 11, 12, 13, 14, 15]); // the cached blocks are useless to it
    let early = [11, 12, 13, 14, 15, 16];
    let wrong = scheduler.commit(first.step, &[0, 0], &[], 0.0, Some(&told(&early[1..], &[])), None).map(drop);
    assert!(matches!(wrong, Err(Error::Sampled { .. })));
    scheduler.commit(first.step, &[0, 0], &[], 0.0, Some(&told(&early, &[])), None)?;
    scheduler.hold(CLIENT, RequestId(2), "preempted")?;
    scheduler.release(CLIENT, RequestId(2), "preempted")?;

    let again = plan(&mut scheduler);
    scheduler.commit(again.step, &[0, 0], &[], 0.0, Some(&told(&early[..5], &[])), None)?;
    let rest = plan(&mut scheduler);
    assert_eq!(tokens(&rest), [16, 17, 18, 19]);
    scheduler.commit(rest.step, &[0, 1], &[7], 0.0, Some(&told(&[16, 17, 18, 19], &[7])), None)?;
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!((&deltas.offsets[..], &deltas.token_starts[..]), (&[-9, 0][..], &[0, 9, 10][..]));
    assert_eq!(deltas.tokens, (11..20).chain([7]).collect::<Vec<_>>());
    assert_eq!((&deltas.logprobs.ids, &deltas.logprobs.starts), (&deltas.tokens, &(0..=10).collect()));
    Ok(())
}
