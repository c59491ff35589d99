//! Forks by call, and drafts.

use pyllm_scheduler::{Config, Error, Output, Request, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, run_to_the_end, scheduler};
use crate::sections::Sections;

#[test]
fn a_fork_of_a_fork_copies_the_slot_that_a_plan_has_made() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(request(1, [1, 2, 3], 4))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 7);
    assert_eq!(scheduler.fork(CLIENT, RequestId(1), 0, 8)?, 1);
    assert_eq!(scheduler.fork(CLIENT, RequestId(1), 1, 9)?, 2);
    let second = plan(&mut scheduler);
    let sections = Sections::new(&second);
    assert_eq!(sections.pairs("slot_copies"), [(0, 1), (0, 2)]);
    assert_eq!(sections.ints("tokens"), [7, 8, 9]);
    Ok(())
}

#[test]
fn a_fork_of_what_still_computes_its_prompt_waits() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 4);
    let outputs = vec![Output { tokens: vec![7], finished: false }];
    scheduler.add(Request { outputs, ..request(1, [1; 9], 4) })?;
    let chunk = plan(&mut scheduler);
    commit(&mut scheduler, &chunk, 0);
    scheduler.fork(CLIENT, RequestId(1), 0, 8)?;
    let samples = scheduler.explain(CLIENT, RequestId(1))?;
    assert_eq!((samples[0].state, samples[1].state), ("running", "preempted"));
    let deltas = run_to_the_end(&mut scheduler, 5);
    assert_eq!((&deltas.offsets[..], &deltas.tokens[..]), (&[1, 0][..], &[5, 5, 5, 8, 5, 5, 5][..]));
    Ok(())
}

#[test]
fn nothing_is_preempted_for_drafts() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { enable_prefix_caching: false, ..config(4, 2, 64) })?;
    for id in 1..3 {
        scheduler.add(request(id, [id as i32; 7], 6))?;
    }
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 5);
    scheduler.propose(CLIENT, RequestId(1), 0, &[5, 5])?;
    let second = plan(&mut scheduler);
    assert_eq!((second.num_rows(), second.num_tokens()), (2, 2));
    assert_eq!(scheduler.stats().num_preemptions, 0);
    Ok(())
}

#[test]
fn the_block_that_a_forks_own_token_fills_has_a_name_of_its_own() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(request(1, [1, 2, 3], 4))?;
    let first = plan(&mut scheduler);
    plan(&mut scheduler); // computes the fourth token
    commit(&mut scheduler, &first, 7);
    scheduler.lose_device();
    scheduler.fork(CLIENT, RequestId(1), 0, 8)?;
    let both = plan(&mut scheduler);
    assert_eq!(Sections::new(&both).ints("tokens"), [1, 2, 3, 7, 1, 2, 3, 8]);
    commit(&mut scheduler, &both, 5);
    run_to_the_end(&mut scheduler, 5);
    scheduler.add(request(2, [1, 2, 3, 7, 0], 1))?;
    scheduler.add(request(3, [1, 2, 3, 8, 0], 1))?;
    let found = plan(&mut scheduler);
    let sections = Sections::new(&found);
    assert_eq!(sections.ints("tokens"), [0, 0]);
    assert_ne!(sections.ints("table_blocks")[0], sections.ints("table_blocks")[2]);
    Ok(())
}
