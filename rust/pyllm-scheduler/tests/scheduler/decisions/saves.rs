//! Keys and values for outside.

use pyllm_scheduler::{Config, Error, Request, Scheduler};

use super::{commit, config, plan, request};

fn saving(max_saving_blocks: u32) -> Scheduler {
    Scheduler::new(Config { max_saving_blocks, ..config(8, 1, 64) }).expect("the limits are in range")
}

#[test]
fn a_block_whose_last_token_is_computed_again_is_not_saved() -> Result<(), Error> {
    for (sampled, num_saved) in [(&[][..], 1), (&[7][..], 2)] {
        let mut scheduler = saving(3);
        scheduler.add(Request { stateful: true, ..request(1, [1; 8], 9) })?;
        let first = plan(&mut scheduler);
        assert_eq!(scheduler.take_saves(), []);
        scheduler.commit(first.step, &[0, sampled.len() as i32], sampled, 0.0, None, None)?;
        assert_eq!(scheduler.take_saves().len(), num_saved);
    }
    Ok(())
}

#[test]
fn a_block_that_is_saved_is_not_given_away_and_what_requests_need_is_not_saved() -> Result<(), Error> {
    let mut scheduler = saving(3);
    scheduler.add(request(1, [1; 12], 1))?;
    let first = plan(&mut scheduler);
    commit(&mut scheduler, &first, 7);
    let saves = scheduler.take_saves();
    assert_eq!((saves.len(), scheduler.stats().num_free_blocks), (3, 5));
    // The next request needs all blocks but those, of which one is free then.
    scheduler.add(request(2, [2; 20], 1))?;
    let second = plan(&mut scheduler);
    commit(&mut scheduler, &second, 7);
    assert_eq!(scheduler.take_saves(), [], "as many are saved as may be");
    for save in &saves {
        scheduler.finish_save(save.id)?;
    }
    assert_eq!(scheduler.take_saves().len(), 3);
    assert_eq!(scheduler.take_saves(), []);
    Ok(())
}
