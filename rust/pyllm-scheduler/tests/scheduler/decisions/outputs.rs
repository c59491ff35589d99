//! Reuse of output blocks if keys and values depend on the prompt's length.

use pyllm_scheduler::{Config, Error, Output, Request, Scheduler};

use super::{config, request, run_to_the_end};

const OUTPUT: i32 = 5;

/// Cached tokens of some requests, after one with a prompt of six tokens and an output of seven.
fn cached(separate_outputs: bool, requests: [Request; 3]) -> Result<Vec<u64>, Error> {
    let mut scheduler = Scheduler::new(Config { separate_outputs, ..config(16, 1, 64) })?;
    scheduler.add(request(1, [1, 2, 3, 4, 1, 2], 7))?;
    run_to_the_end(&mut scheduler, OUTPUT);
    let mut found = Vec::new();
    for request in requests {
        let hits = scheduler.stats().prefix_hits;
        scheduler.add(request)?;
        run_to_the_end(&mut scheduler, OUTPUT);
        found.push(scheduler.stats().prefix_hits - hits);
    }
    Ok(found)
}

#[test]
fn separate_outputs_are_found_by_requests_with_the_same_prompt() -> Result<(), Error> {
    let resumed = |id, prompt: &[i32], num_outputs: usize| Request {
        outputs: vec![Output { tokens: vec![OUTPUT; num_outputs], ..Output::default() }],
        ..request(id, prompt, 8)
    };
    let requests = || {
        [
            request(2, [1, 2, 3, 4, 1, 2, 5, 5, 5, 5, 5, 5], 1), // the next turn of the conversation
            resumed(3, &[1, 2, 3, 4, 1, 2], 7),                  // the same request, after a crash
            resumed(4, &[1, 2, 3, 4, 1, 2, 5], 6),               // the same tokens, but its prompt is longer
        ]
    };
    assert_eq!(cached(false, requests())?, [8, 12, 12]);
    assert_eq!(cached(true, requests())?, [4, 12, 4]);
    Ok(())
}
