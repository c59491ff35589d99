//! Pooling requests: one row for the prompt's last token, and an embedding for it.

use proptest::prelude::*;
use pyllm_scheduler::{Config, Embeddings, Error, Finish, Plan, Pooling, Request, RequestId, Scheduler, replay};

use super::{CLIENT, config, plan, request, scheduler};
use crate::sections::Sections;

fn pooling(id: u64, prompt: impl Into<Vec<i32>>) -> Request {
    Request { pooling: Pooling::Last, ..request(id, prompt, 0) }
}

/// Commits a plan of one row, with this embedding.
fn give(scheduler: &mut Scheduler, plan: &Plan, embedding: &[f32]) -> Result<(), Error> {
    let num_sampled = Sections::new(plan).uniforms.len() as i32;
    let tokens = vec![7; num_sampled as usize];
    let embeddings = Embeddings { starts: vec![0, embedding.len() as i32], values: embedding.to_vec() };
    scheduler.commit(plan.step, &[0, num_sampled], &tokens, 0.0, None, Some(&embeddings)).map(drop)
}

#[test]
fn a_prompt_comes_in_chunks_and_its_last_row_gives_the_embedding() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 6);
    scheduler.add(pooling(1, [1; 10]))?;
    let first = plan(&mut scheduler);
    give(&mut scheduler, &first, &[])?;
    assert!(scheduler.take_deltas(CLIENT).is_none());
    let last = plan(&mut scheduler);
    assert_eq!(scheduler.schedule(0.0)?, None, "it is planned once");
    assert_eq!(Sections::new(&last).ints("logits_rows"), [3]);
    let refused = give(&mut scheduler, &last, &[]);
    assert!(
        matches!(refused, Err(Error::Sampled { problem, .. }) if problem == "row 0 asks for an embedding and has none")
    );
    give(&mut scheduler, &last, &[0.5, 0.25])?;
    let deltas = scheduler.take_deltas(CLIENT).expect("there are deltas");
    assert_eq!((&deltas.finishes[..], &deltas.token_starts[..]), (&[Finish::Stop as u8][..], &[0, 0][..]));
    assert_eq!(deltas.embeddings, Embeddings { starts: vec![0, 2], values: vec![0.5, 0.25] });
    assert_eq!((scheduler.stats().num_requests, scheduler.stats().num_used_blocks), (0, 0));
    Ok(())
}

#[test]
fn the_last_token_is_computed_even_where_all_of_the_prompt_is_cached() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    for (id, cached) in [(1, 0), (2, 4)] {
        scheduler.add(pooling(id, [1, 2, 3, 4, 5, 6, 7, 8]))?;
        let only = plan(&mut scheduler);
        assert_eq!(only.num_tokens(), 8 - cached);
        give(&mut scheduler, &only, &[1.0])?;
        assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").cached_tokens, [cached as i32]);
    }
    Ok(())
}

#[test]
fn a_whole_prompt_is_computed_whatever_is_cached() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    for id in [1, 2] {
        scheduler.add(Request { pooling: Pooling::Mean, ..pooling(id, [1, 2, 3, 4, 5, 6, 7, 8]) })?;
        let only = plan(&mut scheduler);
        assert_eq!(only.num_tokens(), 8);
        give(&mut scheduler, &only, &[1.0])?;
        assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").cached_tokens, [0]);
    }
    Ok(())
}

fn of_whole_prompts(max_num_seqs: u32, stages: u32) -> Config {
    Config {
        whole_prompts: true,
        enable_prefix_caching: false,
        max_model_len: 16,
        inter_token_target: 1e-9,
        pipeline_parallel_size: stages,
        ..config(64, max_num_seqs, 16)
    }
}

#[test]
fn a_step_that_has_whole_prompts_has_room_for_the_longest() {
    let config = of_whole_prompts(4, 1);
    for wrong in
        [Config { max_num_batched_tokens: 15, ..config.clone() }, Config { long_prefill_token_threshold: 4, ..config }]
    {
        assert!(matches!(Scheduler::new(wrong), Err(Error::Config(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_step_has_all_tokens_of_a_prompt_or_none(
        lengths in prop::collection::vec(1..17_usize, 1..20), max_num_seqs in 1..6_u32, stages in 1..4_u32,
    ) {
        let mut scheduler = Scheduler::new(of_whole_prompts(max_num_seqs, stages))?;
        for (id, &length) in (0..).zip(&lengths) {
            scheduler.add(pooling(id, vec![1; length]))?;
        }
        let mut planned = Vec::new();
        while let Some(plan) = scheduler.schedule(0.0)? {
            let sections = Sections::new(&plan);
            let rows = plan.num_rows() as usize;
            prop_assert_eq!(sections.uniforms.len(), rows, "each row ends a prompt");
            planned.extend(sections.ints("query_starts").windows(2).map(|ends| (ends[1] - ends[0]) as usize));
            let sampled: Vec<i32> = (0..=rows as i32).collect();
            let embeddings = Embeddings { starts: sampled.clone(), values: vec![1.0; rows] };
            scheduler.commit(plan.step, &sampled, &vec![7; rows], 0.0, None, Some(&embeddings)).map(drop)?;
        }
        prop_assert_eq!(planned, lengths);
        prop_assert_eq!(scheduler.stats().num_requests, 0);
    }
}

#[test]
fn the_prompt_may_be_as_long_as_the_context_and_fill_every_block() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    assert!(matches!(scheduler.add(request(1, [1; 64], 1)), Err(Error::PromptTooLong { .. })));
    assert!(matches!(scheduler.add(pooling(2, [1; 65])), Err(Error::PromptTooLong { .. })));
    scheduler.add(pooling(3, [1; 64]))?;
    let only = plan(&mut scheduler);
    assert_eq!((only.num_tokens(), scheduler.stats().num_free_blocks), (64, 0));
    give(&mut scheduler, &only, &[1.0])
}

#[test]
fn a_row_in_flight_counts_though_its_request_is_held_and_not_if_the_device_is_lost() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.add(pooling(1, [1; 5]))?;
    let lost = plan(&mut scheduler);
    scheduler.lose_device();
    assert_eq!(give(&mut scheduler, &lost, &[1.0]), Err(Error::UnknownStep { step: lost.step }));
    let again = plan(&mut scheduler);
    assert_eq!(again.num_tokens(), 5);
    scheduler.hold(CLIENT, RequestId(1), "test")?;
    give(&mut scheduler, &again, &[1.0])?;
    assert_eq!(scheduler.take_deltas(CLIENT).expect("there are deltas").embeddings.values, [1.0]);
    assert_eq!((scheduler.stats().num_held, scheduler.stats().num_requests), (0, 0));
    Ok(())
}

#[test]
fn a_recording_replays_without_the_embeddings() -> Result<(), Error> {
    let mut scheduler = scheduler(16, 2, 64);
    scheduler.start_recording()?;
    scheduler.add(pooling(1, [1; 5]))?;
    let only = plan(&mut scheduler);
    give(&mut scheduler, &only, &[0.123; 4096])?;
    let recording = scheduler.take_recording();
    assert!(recording.len() < 4096, "it has {} bytes", recording.len());
    assert_eq!(replay(&recording)?.stats, scheduler.stats());
    Ok(())
}
