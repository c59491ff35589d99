//! Loads from an external store.

use pyllm_scheduler::{Error, Output, Request, RequestId};

use super::{CLIENT, commit, plan, request, run_to_the_end, scheduler};

#[test]
fn of_several_samples_that_resume_only_the_prompt_is_loaded() -> Result<(), Error> {
    for (num_samples, num_tokens) in [(1, 8), (2, 4)] {
        let mut scheduler = scheduler(16, 4, 64);
        let outputs = vec![Output { tokens: vec![7; 5], finished: false }; num_samples as usize];
        scheduler.add(Request { n: num_samples, outputs, ..request(1, [1; 5], 9) })?;
        scheduler.offer_load(CLIENT, RequestId(1), 10, false)?;
        plan(&mut scheduler);
        assert_eq!(scheduler.take_loads()[0].num_tokens, num_tokens);
    }
    Ok(())
}

#[test]
fn a_load_that_brings_less_counts_as_computed() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 4, 64);
    scheduler.add(request(1, [1; 9], 1))?;
    scheduler.offer_load(CLIENT, RequestId(1), 8, false)?;
    let first = plan(&mut scheduler);
    assert_eq!(scheduler.stats().num_uncached_tokens, 1);
    let load = scheduler.take_loads()[0].id;
    scheduler.finish_load(load, 4)?;
    commit(&mut scheduler, &first, 7);
    run_to_the_end(&mut scheduler, 7);
    let stats = scheduler.stats();
    assert_eq!((stats.prefix_hits, stats.num_uncached_tokens), (0, 9));
    Ok(())
}
