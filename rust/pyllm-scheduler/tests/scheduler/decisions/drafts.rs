//! Drafts.

use pyllm_scheduler::{Config, Error, RequestId, Scheduler};

use super::{CLIENT, commit, config, plan, request, scheduler};

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
fn drafts_leave_every_stream_its_row() -> Result<(), Error> {
    for (max_num_seqs, max_num_batched_tokens) in [(3, 64), (8, 6)] {
        let mut scheduler = scheduler(16, max_num_seqs, max_num_batched_tokens);
        for id in 1..4 {
            scheduler.add(request(id, [id as i32; 2], 20))?;
        }
        let first = plan(&mut scheduler);
        commit(&mut scheduler, &first, 5);
        scheduler.propose(CLIENT, RequestId(1), 0, &[5; 9])?;
        let second = plan(&mut scheduler);
        assert_eq!((second.num_rows(), second.num_tokens()), (3, 6));
    }
    Ok(())
}
