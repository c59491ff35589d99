//! Saves to an external store.

use pyllm_scheduler::{Config, Error, HostBlock, HostBlockId, Request, Retention, SaveId, Scheduler, replay};

use super::{Sections, commit, config, plan, request};

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
    // The next request needs all other blocks, one of which is free by then.
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

/// Saves after requests of these retentions, run one after the other with the same prompt of two full blocks: the index
/// and the retention of each block.
fn saved(scheduler: &mut Scheduler, retentions: &[Retention]) -> Result<Vec<Vec<(u32, Retention)>>, Error> {
    let one = |(id, &kv_cache_retention): (usize, &Retention)| {
        scheduler.add(Request { kv_cache_retention, ..request(id as u64, [1; 9], 1) })?;
        let step = plan(scheduler);
        commit(scheduler, &step, 7);
        let saves = scheduler.take_saves();
        for save in &saves {
            scheduler.finish_save(save.id)?;
        }
        Ok(saves.iter().map(|save| (save.index, save.retention)).collect())
    };
    retentions.iter().enumerate().map(one).collect()
}

#[test]
fn what_is_found_is_saved_for_whoever_wants_it_kept_longer() -> Result<(), Error> {
    use Retention::{Default, Long, None};
    let both = |retention| vec![(0, retention), (1, retention)];
    for (retentions, expected) in [
        ([None, None, Default], [vec![], vec![], both(Default)]),
        ([Default, Default, Long], [both(Default), vec![], both(Long)]),
        ([Long, Default, None], [both(Long), vec![], vec![]]),
    ] {
        let mut scheduler = saving(3);
        scheduler.start_recording()?;
        assert_eq!(saved(&mut scheduler, &retentions)?, expected);
        assert_eq!(replay(&scheduler.take_recording())?.stats, scheduler.stats());
    }
    Ok(())
}

#[test]
fn of_two_requests_that_compute_a_block_at_once_the_one_that_wants_it_saved_counts() {
    let limits = Config { max_saving_blocks: 3, ..config(8, 2, 64) };
    let mut scheduler = Scheduler::new(limits).expect("the limits are in range");
    let retentions = [(1, Retention::None), (2, Retention::Long)];
    let steps = retentions.map(|(id, kv_cache_retention)| {
        scheduler.add(Request { kv_cache_retention, ..request(id, [1; 5], 1) }).expect("it fits");
        plan(&mut scheduler)
    });
    for step in &steps {
        assert_eq!(step.num_tokens(), 5);
        commit(&mut scheduler, step, 7);
    }
    assert!(scheduler.take_saves().iter().map(|save| (save.index, save.retention)).eq([(0, Retention::Long)]));
}

#[test]
fn a_block_from_the_host_is_known_to_be_saved() -> Result<(), Error> {
    let limits = Config { max_saving_blocks: 3, num_host_blocks: 8, ..config(5, 1, 64) };
    let mut scheduler = Scheduler::new(limits).expect("the limits are in range");
    assert_eq!(saved(&mut scheduler, &[Retention::Default])?[0].len(), 2);
    // This request needs the whole device.
    scheduler.add(Request { kv_cache_retention: Retention::None, ..request(9, [2; 17], 1) })?;
    let step = plan(&mut scheduler);
    commit(&mut scheduler, &step, 7);
    for (id, kv_cache_retention, num_saved) in [(10, Retention::Default, 0), (11, Retention::Long, 2)] {
        scheduler.add(Request { kv_cache_retention, ..request(id, [1; 9], 1) })?;
        let step = plan(&mut scheduler);
        commit(&mut scheduler, &step, 7);
        assert_eq!(scheduler.take_saves().len(), num_saved);
    }
    assert!(scheduler.stats().host_prefix_hits > 0);
    Ok(())
}

/// The indices of the blocks that are saved after a request with this prompt, whose saves end.
fn saved_of(scheduler: &mut Scheduler, request: Request) -> Result<Vec<u32>, Error> {
    scheduler.add(request)?;
    let step = plan(scheduler);
    commit(scheduler, &step, 7);
    let saves = scheduler.take_saves();
    saves.iter().try_for_each(|save| scheduler.finish_save(save.id))?;
    Ok(saves.iter().map(|save| save.index).collect())
}

#[test]
fn a_block_that_was_written_again_is_saved_when_it_is_found_on_the_host() -> Result<(), Error> {
    let limits = Config { max_saving_blocks: 3, num_host_blocks: 8, ..config(5, 1, 64) };
    let mut scheduler = Scheduler::new(limits)?;
    scheduler.add(Request { stateful: true, ..request(1, [1; 8], 1) })?;
    let first = plan(&mut scheduler);
    scheduler.commit(first.step, &[0, 0], &[], 0.0, None, None)?;
    let again = plan(&mut scheduler);
    commit(&mut scheduler, &again, 7);
    assert!(scheduler.take_saves().iter().map(|save| save.index).eq([0]), "the other one is written again");
    scheduler.finish_save(SaveId(0))?;
    // This request needs the whole device.
    let none = Retention::None;
    assert_eq!(saved_of(&mut scheduler, Request { kv_cache_retention: none, ..request(2, [2; 17], 1) })?, []);
    let default = request(3, [1; 9], 1);
    assert_eq!(saved_of(&mut scheduler, default)?, [1]);
    assert!(scheduler.stats().host_prefix_hits > 0);
    Ok(())
}

#[test]
fn a_host_block_that_outlives_the_device_is_saved_for_whoever_finds_it() -> Result<(), Error> {
    let limits = Config { max_saving_blocks: 3, num_host_blocks: 8, ..config(5, 1, 64) };
    let mut scheduler = Scheduler::new(limits)?;
    let none = Retention::None;
    let unsaved = |id, prompt: Vec<i32>| Request { kv_cache_retention: none, ..request(id, prompt, 1) };
    assert_eq!(saved_of(&mut scheduler, unsaved(1, vec![1; 9]))?, []);
    scheduler.add(unsaved(2, vec![2; 17]))?;
    let step = plan(&mut scheduler);
    let kept = Sections::new(&step).swaps().into_iter().filter_map(|swap| {
        let (hash, group, index) = swap.name?;
        Some(HostBlock { block: HostBlockId(swap.host as u32), group, index, hash })
    });
    let kept: Vec<_> = kept.collect();
    assert_eq!(kept.len(), 2);
    commit(&mut scheduler, &step, 7);
    scheduler.lose_device();
    scheduler.restore_host_blocks(kept)?;
    assert_eq!(saved_of(&mut scheduler, unsaved(3, vec![1; 9]))?, []);
    assert_eq!(saved_of(&mut scheduler, request(4, [1; 9], 1))?, [0, 1]);
    assert!(scheduler.stats().host_prefix_hits > 0);
    Ok(())
}
