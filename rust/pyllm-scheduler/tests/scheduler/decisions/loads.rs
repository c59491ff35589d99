//! Loads from an external store.

use pyllm_scheduler::{Error, Output, Request, RequestId};

use super::{CLIENT, plan, request, scheduler};

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
