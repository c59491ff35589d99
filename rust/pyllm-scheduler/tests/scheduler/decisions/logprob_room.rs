//! Requests for log-probabilities of the whole vocabulary, of which a step carries only so many.

use pyllm_scheduler::{Config, Error, Plan, Request, Scheduler};

use super::{commit, config, plan, request, run_to_the_end};
use crate::sections::Sections;

const VOCABULARY: u32 = 100_000;
const MOST: u32 = 8 * (VOCABULARY + 1);

fn scheduler() -> Scheduler {
    let limits = Config { vocab_size: VOCABULARY, ..config(256, 16, 64) };
    Scheduler::new(limits).expect("the limits are in range")
}

fn wide(id: u64, num_tokens: usize, max_tokens: u32) -> Request {
    Request { num_logprobs: VOCABULARY + 1, ..request(id, vec![id as i32; num_tokens], max_tokens) }
}

/// Numbers of tokens that a plan has of each slot.
fn tokens_of(plan: &Plan, num_slots: usize) -> Vec<i32> {
    let sections = Sections::new(plan);
    let mut counts = vec![0; num_slots];
    for (&slot, bounds) in sections.ints("slots").iter().zip(sections.ints("query_starts").windows(2)) {
        counts[slot as usize] = bounds[1] - bounds[0];
    }
    counts
}

#[test]
fn prompts_come_in_pieces_and_stop_neither_a_stream_nor_one_another_nor_the_queue() -> Result<(), Error> {
    let mut scheduler = scheduler();
    scheduler.add(request(100, [7], 30))?;
    let first = plan(&mut scheduler);
    let stream = Sections::new(&first).ints("slots")[0] as usize;
    commit(&mut scheduler, &first, 5);
    for id in 1..5 {
        scheduler.add(Request { prompt_logprobs: true, stateful: true, ..wide(id, 40, 1) })?;
    }
    scheduler.add(request(101, [8], 1))?; // behind them
    for _ in 0..5 {
        let step = plan(&mut scheduler);
        let tokens = tokens_of(&step, 16);
        assert_eq!(tokens[stream], 1);
        let scored = tokens.iter().sum::<i32>() - 2; // but for the stream, and the one that came last
        assert!(scored as u32 * (VOCABULARY + 1) <= MOST, "{tokens:?}");
        commit(&mut scheduler, &step, 5);
    }
    assert_eq!(scheduler.stats().num_waiting, 0);
    run_to_the_end(&mut scheduler, 5);
    Ok(())
}

#[test]
fn streams_of_them_take_turns_and_stop_no_other() -> Result<(), Error> {
    let mut scheduler = scheduler();
    for id in 1..12 {
        scheduler.add(wide(id, 4, 50))?;
    }
    scheduler.add(Request { num_logprobs: 21, ..request(12, [7], 60) })?;
    for _ in 0..10 {
        let step = plan(&mut scheduler);
        commit(&mut scheduler, &step, 5);
    }
    let mut counts = [0; 16];
    for _ in 0..11 {
        let step = plan(&mut scheduler);
        let tokens = tokens_of(&step, 16);
        assert!(tokens.iter().sum::<i32>() as u32 * (VOCABULARY + 1) <= MOST);
        counts.iter_mut().zip(tokens).for_each(|(count, number)| *count += number);
        commit(&mut scheduler, &step, 5);
    }
    let mut counts = counts.into_iter().filter(|&count| count > 0).collect::<Vec<_>>();
    counts.sort_unstable();
    assert_eq!((counts.len(), counts[0], counts[11]), (12, 3, 11)); // of 4 rows a step for 11 of them
    Ok(())
}

#[test]
fn the_samples_of_one_request_must_fit_into_a_step() -> Result<(), Error> {
    let mut scheduler = scheduler();
    scheduler.add(Request { n: 2, ..wide(1, 4, 1) })?;
    let refused = scheduler.add(Request { n: 3, ..wide(2, 4, 1) }).map(drop);
    assert!(matches!(refused, Err(Error::Request(text)) if text.contains("n is 3") && text.contains("200002")));
    Ok(())
}
