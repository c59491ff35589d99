//! Beam searches: slots of beams, and waits for siblings.

use pyllm_scheduler::{
    Config, Error, Finish, LogprobEntries, Logprobs, Output, Plan, PolicyName, Reason, Request, RequestId, Scheduler,
    StartTimes,
};

use super::{CLIENT, config, plan, request, scheduler};
use crate::sections::Sections;

/// The candidates of each row, likeliest first.
type Candidates<'a> = &'a [&'a [(i32, f32)]];

fn search(id: u64, prompt: impl Into<Vec<i32>>, max_tokens: u32, beam_width: u32) -> Request {
    Request { n: beam_width, beam_width, length_penalty: 1.0, ..request(id, prompt, max_tokens) }
}

/// A result whose every sampled token is 99.
fn result(plan: &Plan, candidates: Candidates<'_>) -> (Vec<i32>, Vec<i32>, Logprobs) {
    let starts = Sections::new(plan).ints("sampled_starts").to_vec();
    let mut entries = LogprobEntries { starts: vec![0], ..LogprobEntries::default() };
    for (range, candidates) in starts.windows(2).zip(candidates) {
        for _ in range[0]..range[1] {
            entries.ids.extend([99].into_iter().chain(candidates.iter().map(|&(token, _)| token)));
            entries.values.extend([-9.0].into_iter().chain(candidates.iter().map(|&(_, logprob)| logprob)));
            entries.ranks.extend(0..=candidates.len() as i32);
            entries.starts.push(entries.ids.len() as i32);
        }
    }
    let tokens = vec![99; entries.starts.len() - 1];
    let prompt_starts = vec![0; starts.len()];
    (starts, tokens, Logprobs { prompt_starts, prompt_tokens: Vec::new(), entries })
}

fn commit(scheduler: &mut Scheduler, plan: &Plan, candidates: Candidates<'_>) {
    let (starts, tokens, logprobs) = result(plan, candidates);
    scheduler.commit(plan.step, &starts, &tokens, 0.0, Some(&logprobs), None).expect("the step is due");
    scheduler.audit().expect("the books add up");
}

fn rows(plan: &Plan) -> Vec<i32> {
    Sections::new(plan).ints("tokens").to_vec()
}

const FIRST: &[(i32, f32)] = &[(10, -1.0), (20, -1.5), (30, -2.0), (40, -4.0)];
const LIKELY: &[(i32, f32)] = &[(11, -0.1), (12, -0.2), (13, -5.0), (14, -5.0)];
const UNLIKELY: &[(i32, f32)] = &[(21, -3.0), (22, -3.5), (23, -5.0), (24, -5.0)];

#[test]
fn a_first_child_goes_on_in_its_parents_place_and_further_ones_take_that_of_who_has_none() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(search(1, [1, 2, 3], 9, 2))?;
    let first = plan(&mut scheduler);
    assert_eq!(Sections::new(&first).ints("logits_rows"), [2, 2]);
    commit(&mut scheduler, &first, &[FIRST]);
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [10, 20]);
    assert_eq!(Sections::new(&second).pairs("slot_copies"), [(0, 1)]);
    commit(&mut scheduler, &second, &[LIKELY, UNLIKELY]);
    let third = plan(&mut scheduler);
    let sections = Sections::new(&third);
    assert_eq!((sections.ints("tokens"), sections.pairs("slot_copies")), (&[11, 12][..], vec![(0, 1)]));
    assert_eq!(sections.pairs("block_copies"), [], "the block that both share is full");
    assert!(scheduler.take_deltas(CLIENT).is_none(), "nothing is told before the end");
    Ok(())
}

#[test]
fn the_answer_is_told_at_the_end_best_first() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(Request { stop_token_ids: vec![21], ..search(1, [1, 2, 3], 2, 2) })?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST]);
    let second = plan(&mut scheduler);
    let stop = &[(21, -0.1), (22, -3.5), (23, -5.0), (24, -5.0)];
    commit(&mut scheduler, &second, &[LIKELY, stop]);
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!((&deltas.samples[..], &deltas.offsets[..]), (&[0, 1][..], &[0, 0][..]));
    assert_eq!((deltas.row_tokens(0), deltas.row_tokens(1)), (&[10, 11][..], &[10, 12][..]), "-1.1 / 5 and -1.2 / 5");
    assert_eq!(deltas.finishes, [Finish::Length as u8; 2], "-1.6 / 4 is worse");
    assert_eq!(deltas.logprobs.starts, [0, 1, 2, 3, 4]);
    assert_eq!(deltas.logprobs.ids, deltas.tokens);
    assert_eq!(deltas.logprobs.values, [-1.0, -0.1, -1.0, -0.2]);
    assert_eq!(deltas.logprobs.ranks, [1, 1, 1, 2]);
    assert_eq!((scheduler.stats().num_requests, scheduler.stats().num_used_blocks), (0, 0));
    Ok(())
}

#[test]
fn a_search_begins_with_its_answer() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(search(1, [1, 2, 3], 2, 2))?;
    for (now, candidates) in [(1.0, &[FIRST][..]), (2.0, &[LIKELY, UNLIKELY])] {
        assert!(scheduler.take_deltas(CLIENT).is_none());
        let plan = scheduler.schedule(now)?.expect("it has more to compute");
        let (starts, tokens, logprobs) = result(&plan, candidates);
        scheduler.commit(plan.step, &starts, &tokens, 0.5, Some(&logprobs), None)?;
    }
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!(deltas.samples, [0, 1]);
    assert_eq!(deltas.start_times, StartTimes { rows: vec![0], queue: vec![1.0], prefill: vec![1.5] });
    Ok(())
}

#[test]
fn a_beam_waits_for_its_siblings() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 3);
    scheduler.add(search(1, [1, 2, 3], 9, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST]);
    scheduler.add(request(2, [7], 9))?;
    scheduler.reconfigure(Config { max_num_batched_tokens: 1, ..config(16, 4, 3) })?;
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [10]);
    commit(&mut scheduler, &second, &[LIKELY]);
    let third = plan(&mut scheduler);
    assert_eq!(rows(&third), [20]);
    let explained = scheduler.explain(CLIENT, RequestId(1))?;
    assert_eq!((explained[0].state, explained[0].reason), ("running", Some(Reason::Siblings)));
    commit(&mut scheduler, &third, &[UNLIKELY]);
    assert_eq!(rows(&plan(&mut scheduler)), [11]);
    Ok(())
}

#[test]
fn a_beam_that_is_preempted_keeps_its_candidates() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 1);
    scheduler.add(search(1, [1], 9, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST]);
    let second = plan(&mut scheduler);
    commit(&mut scheduler, &second, &[LIKELY]);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    scheduler.release(CLIENT, RequestId(1), "test")?;
    let explained = scheduler.explain(CLIENT, RequestId(1))?;
    assert_eq!((explained[0].state, explained[0].reason), ("paused", Some(Reason::Siblings)));
    assert_eq!(scheduler.stats().num_paused, 1);
    for candidates in [&[][..], &[UNLIKELY]] {
        let other = plan(&mut scheduler); // the prompt, and the token after it
        commit(&mut scheduler, &other, candidates);
    }
    assert_eq!(scheduler.stats().num_paused, 0);
    assert_eq!(scheduler.explain(CLIENT, RequestId(1))?[0].state, "preempted");
    Ok(())
}

#[test]
fn what_only_waits_for_its_siblings_makes_way_for_those_of_another() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(search(1, [1], 3, 2))?;
    scheduler.add(search(2, [2], 3, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST, FIRST]);
    let second = plan(&mut scheduler); // one beam of each has a slot
    commit(&mut scheduler, &second, &[LIKELY, LIKELY]);
    let third = plan(&mut scheduler);
    assert_eq!(rows(&third), [1, 20]);
    let state = |scheduler: &Scheduler, id| scheduler.explain(CLIENT, RequestId(id)).map(|samples| samples[0].state);
    assert_eq!((state(&scheduler, 1)?, state(&scheduler, 2)?), ("running", "paused"));
    commit(&mut scheduler, &third, &[UNLIKELY]);
    let mut num_steps = 0;
    while scheduler.stats().num_requests > 0 {
        let step = plan(&mut scheduler);
        commit(&mut scheduler, &step, &[LIKELY, UNLIKELY][..step.num_rows() as usize]);
        num_steps += 1;
        assert!(num_steps < 20);
    }
    Ok(())
}

#[test]
fn a_sibling_makes_way_last() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { policy: PolicyName::Shortest, ..config(32, 2, 64) })?;
    scheduler.add(search(1, [1; 20], 3, 2))?;
    scheduler.add(search(2, [2], 10, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST, FIRST]);
    let second = plan(&mut scheduler);
    commit(&mut scheduler, &second, &[LIKELY, LIKELY]);
    // The second search has less to recompute, and more until its end.
    assert_eq!(rows(&plan(&mut scheduler)), [2, 20]);
    assert_eq!(scheduler.explain(CLIENT, RequestId(1))?[0].state, "paused");
    assert_eq!(scheduler.explain(CLIENT, RequestId(2))?[0].state, "running");
    Ok(())
}

#[test]
fn neither_watermark_nor_growth_keeps_a_beam_from_its_siblings() -> Result<(), Error> {
    let limits = config(16, 2, 64);
    for strict in [Config { watermark: 0.95, ..limits.clone() }, Config { expected_growth: 16.0, ..limits.clone() }] {
        let mut scheduler = Scheduler::new(limits.clone())?;
        scheduler.add(request(1, [7], 2))?; // has the second slot when the beams fork
        scheduler.add(search(2, [1], 3, 2))?;
        let first = plan(&mut scheduler);
        commit(&mut scheduler, &first, &[&[], FIRST]);
        let second = plan(&mut scheduler);
        commit(&mut scheduler, &second, &[&[], LIKELY]);
        scheduler.reconfigure(strict)?;
        assert_eq!(rows(&plan(&mut scheduler)), [1, 20]);
        assert_eq!(scheduler.stats().num_preemptions, 0);
    }
    Ok(())
}

#[test]
fn the_end_of_one_beam_from_outside_is_that_of_all() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(search(1, [1, 2, 3], 9, 3))?;
    let first = plan(&mut scheduler);
    let six = [(1, -1.0), (2, -1.0), (3, -1.0), (4, -2.0), (5, -2.0), (6, -2.0)];
    commit(&mut scheduler, &first, &[&six]);
    assert!(!scheduler.abort(CLIENT, RequestId(1), Some(3)));
    assert!(scheduler.abort(CLIENT, RequestId(1), Some(1)));
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!((&deltas.samples[..], &deltas.offsets[..]), (&[0, 1, 2][..], &[0; 3][..]));
    assert_eq!((&deltas.finishes[..], &deltas.tokens[..]), (&[Finish::Abort as u8; 3][..], &[][..]));
    assert_eq!(scheduler.stats().num_used_blocks, 0);
    Ok(())
}

#[test]
fn a_row_of_a_beam_without_its_candidates_is_refused() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(search(1, [1, 2, 3], 9, 2))?;
    let first = plan(&mut scheduler);
    for logprobs in [None, Some(result(&first, &[&FIRST[..3]]).2)] {
        let refused = scheduler.commit(first.step, &[0, 2], &[99, 99], 0.0, logprobs.as_ref(), None).map(drop);
        assert!(matches!(refused, Err(Error::Sampled { .. })), "{refused:?}");
    }
    commit(&mut scheduler, &first, &[FIRST]);
    Ok(())
}

#[test]
fn what_no_beam_search_can_be_is_refused() {
    let mut scheduler = scheduler(16, 4, 64);
    let valid = search(1, [1], 2, 2);
    let output = |length| Output { tokens: vec![1; length], finished: false };
    let wrong = [
        Request { n: 1, ..valid.clone() },
        Request { length_penalty: f64::NAN, ..valid.clone() },
        Request { stateful: true, ..valid.clone() },
        Request { prompt_logprobs: true, ..valid.clone() },
        Request { outputs: vec![output(0), output(1)], ..valid.clone() },
    ];
    for request in wrong {
        let refused = scheduler.add(request);
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    }
    let mut few = Scheduler::new(Config { vocab_size: 3, ..config(16, 4, 64) }).expect("the limits are in range");
    assert!(matches!(few.add(valid), Err(Error::Request(_))));
}

#[test]
fn all_beams_must_fit_together() -> Result<(), Error> {
    let mut scheduler = scheduler(10, 4, 64);
    // Of 4 + 13 tokens 16 are held: one shared block, and three per beam.
    let error = scheduler.add(search(1, [1; 4], 13, 4)).expect_err("13 blocks of 10");
    assert_eq!(
        error.to_string(),
        "a prompt of 4 tokens with max_tokens 13 and beam_width 4 holds 16 tokens in each beam, together in 13 blocks of \
         4, and the KV cache has 10 blocks (40 tokens); shorten the prompt, lower max_tokens or beam_width, or enlarge \
         the KV cache"
    );
    scheduler.add(search(1, [1; 4], 13, 3))
}

#[test]
fn beams_are_neither_forked_nor_given_drafts_by_call() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(search(1, [1, 2, 3], 9, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST]);
    assert!(matches!(scheduler.propose(CLIENT, RequestId(1), 0, &[5]), Err(Error::Sample { .. })));
    Ok(())
}

#[test]
fn a_lost_device_costs_no_candidates() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 1);
    scheduler.add(search(1, [1], 2, 2))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, &[FIRST]);
    let second = plan(&mut scheduler);
    commit(&mut scheduler, &second, &[LIKELY]);
    scheduler.lose_device();
    scheduler.audit().expect("the books add up");
    for candidates in [&[][..], &[UNLIKELY]] {
        let other = plan(&mut scheduler);
        assert_eq!(other.num_rows(), 1);
        commit(&mut scheduler, &other, candidates);
    }
    assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").tokens, [10, 11, 10, 12]);
    Ok(())
}
