//! Reasons for waiting, and the record of decisions.

use pyllm_scheduler::{Config, Error, Reason, Request, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, scheduler};

#[test]
fn a_sample_that_is_yet_to_fork_is_held_with_its_request() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(Request { n: 2, ..request(1, [1], 2) })?;
    scheduler.hold(CLIENT, RequestId(1), "compiling")?;
    let samples = scheduler.explain(CLIENT, RequestId(1))?;
    assert!(samples.iter().all(|sample| sample.hold.as_deref() == Some("compiling")));
    assert_eq!((samples[0].reason, samples[1].reason), (Some(Reason::Held), Some(Reason::Forking)));
    Ok(())
}

#[test]
fn what_runs_and_has_no_row_knows_what_was_used_up() -> Result<(), Error> {
    let mut scheduler = Scheduler::new(Config { long_prefill_token_threshold: 1, ..config(16, 4, 64) })?;
    for id in 1..4 {
        scheduler.add(Request { n: 4, ..request(id, [id as i32; 2], 1) })?;
    }
    let chunks = plan(&mut scheduler);
    assert_eq!(chunks.num_tokens(), 3);
    commit(&mut scheduler, &chunks, 0);
    assert_eq!(plan(&mut scheduler).num_rows(), 2); // each samples four positions of eight
    assert_eq!(scheduler.explain(CLIENT, RequestId(3))?[0].reason, Some(Reason::Samples));
    Ok(())
}

#[test]
fn the_last_1024_decisions_are_remembered() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 1, 64);
    for now in 0..1030 {
        scheduler.schedule(f64::from(now))?;
    }
    let decisions: Vec<_> = scheduler.decisions().map(|decision| decision.now as u32).collect();
    assert!(decisions.into_iter().eq(6..1030));
    Ok(())
}
