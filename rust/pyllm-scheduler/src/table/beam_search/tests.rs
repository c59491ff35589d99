use proptest::prelude::*;

use super::*;

/// A deterministic language model: equal tokens give the same candidates, likeliest first, some of them equally likely.
fn likeliest(tokens: &[i32], number: usize) -> Vec<Candidate> {
    let mut state = tokens.iter().fold(7, |state, &token| mix(state ^ token as u64));
    let (first, mut logprob) = (state % 100, 0.0);
    let candidate = |place| {
        state = mix(state);
        logprob -= [0.0, 0.25, 0.5, 1.5][(state % 4) as usize];
        Candidate { token: ((first + place * 7) % 100) as i32, logprob }
    };
    (0..number as u64).map(candidate).collect()
}

/// Splitmix64's finaliser.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// The expected answer, if all beams are kept and the search never ends early.
fn naive(request: &Request, max_length: u32) -> Vec<(Vec<i32>, Finish)> {
    let (width, num_prompt_tokens) = (request.beam_width as usize, request.prompt.len());
    let score = |tokens: &[i32], cumulative: f64, finish| {
        let length = num_prompt_tokens + tokens.len() - usize::from(finish == Finish::Stop);
        cumulative / f64::from(length as u32).powf(request.length_penalty)
    };
    let sort = |beams: &mut Vec<(Vec<i32>, f64, Finish)>| {
        beams.sort_by(|one, other| score(&other.0, other.1, other.2).total_cmp(&score(&one.0, one.1, one.2)));
    };
    let (mut live, mut completed) = (vec![(Vec::new(), 0.0, Finish::None)], Vec::new());
    for length in num_prompt_tokens as u32 + 1..=max_length {
        let mut going_on = Vec::new();
        for (tokens, cumulative, _) in live {
            for candidate in likeliest(&tokens, 2 * width) {
                let tokens = [&tokens[..], &[candidate.token]].concat();
                let cumulative: f64 = cumulative + f64::from(candidate.logprob);
                if !request.stop_token_ids.contains(&candidate.token) {
                    let finish = if length == max_length { Finish::Length } else { Finish::None };
                    going_on.push((tokens, cumulative, finish));
                } else if tokens.len() >= request.min_tokens as usize {
                    completed.push((tokens, cumulative, Finish::Stop));
                }
            }
        }
        sort(&mut going_on);
        going_on.truncate(width);
        live = going_on;
    }
    completed.extend(live);
    sort(&mut completed);
    completed.truncate(width);
    completed.into_iter().map(|(tokens, _, finish)| (tokens, finish)).collect()
}

/// Gives the answer and the number of rounds. Candidates of beams become known in an order that depends on `seed`.
fn search(request: &Request, max_length: u32, mut seed: u64) -> (Vec<Completed>, u32) {
    let mut search = BeamSearch::new(request, max_length);
    let mut num_rounds = 0;
    loop {
        let mut beams: Vec<_> = search.live().map(|(sample, tokens, _)| (sample, tokens.to_vec())).collect();
        if beams.is_empty() {
            return (search.answer(), num_rounds);
        }
        num_rounds += 1;
        let mut is_due = false;
        while !beams.is_empty() {
            assert!(!is_due, "a round ends with its last beam");
            seed = mix(seed);
            let (sample, tokens) = beams.swap_remove(seed as usize % beams.len());
            is_due = search.offer(sample, likeliest(&tokens, 2 * request.beam_width as usize));
        }
        assert!(is_due);
        let before: Vec<_> = search.live().map(|(sample, tokens, _)| (sample, tokens.to_vec())).collect();
        let children = search.select(request);
        assert_eq!(children.len(), search.live().count());
        for (child, (sample, tokens, is_known)) in children.iter().zip(search.live()) {
            assert_eq!((child.sample, is_known), (sample, false));
            let parent = before.iter().find(|beam| beam.0 == child.parent).expect("it was a beam");
            assert_eq!(tokens, [&parent.1[..], &[child.token]].concat());
        }
        for parent in &before {
            let firsts = children.iter().find(|child| child.parent == parent.0);
            assert!(firsts.is_none_or(|first| first.sample == first.parent), "the first child takes over");
        }
        let mut samples: Vec<_> = children.iter().map(|child| child.sample).collect();
        samples.sort_unstable();
        samples.dedup();
        assert!(samples.len() == children.len() && samples.iter().all(|&sample| sample < request.beam_width));
    }
}

fn request(beam_width: u32, num_prompt_tokens: usize, length_penalty: f64) -> Request {
    Request { beam_width, n: beam_width, prompt: vec![1; num_prompt_tokens], length_penalty, ..Request::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_answer_is_that_of_a_search_that_keeps_everything(
        (beam_width, num_prompt_tokens, num_tokens) in (1..6_u32, 1..5_usize, 1..8_u32),
        length_penalty in prop_oneof![Just(1.0), Just(0.0), -2.0..3.0_f64],
        (stop_every, min_tokens, seed) in (1..30_usize, 0..8_u32, any::<u64>()),
    ) {
        let request = Request {
            stop_token_ids: (0..100).step_by(stop_every).collect(),
            min_tokens: min_tokens.min(num_tokens),
            ..request(beam_width, num_prompt_tokens, length_penalty)
        };
        let max_length = num_prompt_tokens as u32 + num_tokens;
        let expected = naive(&request, max_length);
        let (answer, num_rounds) = search(&request, max_length, seed);
        let found: Vec<_> = answer.iter().map(|one| (one.path.tokens.clone(), one.finish)).collect();
        prop_assert_eq!(found, expected);
        prop_assert!(num_rounds <= num_tokens);
        prop_assert!(answer.is_sorted_by(|one, other| one.score >= other.score));
        for Completed { path, .. } in &answer {
            prop_assert_eq!((path.logprobs.len(), path.ranks.len()), (path.tokens.len(), path.tokens.len()));
            for (index, &rank) in path.ranks.iter().enumerate() {
                let candidate = likeliest(&path.tokens[..index], 2 * beam_width as usize)[rank as usize - 1];
                prop_assert_eq!((candidate.token, candidate.logprob), (path.tokens[index], path.logprobs[index]));
            }
        }
    }
}

fn candidates(of: [(i32, f32); 4]) -> Vec<Candidate> {
    of.map(|(token, logprob)| Candidate { token, logprob }).to_vec()
}

#[test]
fn a_search_ends_when_nothing_can_become_better_than_what_is_complete() {
    let request = Request { stop_token_ids: vec![0, 9], ..request(2, 1, 0.0) };
    let mut search = BeamSearch::new(&request, 1000);
    assert!(search.offer(0, candidates([(9, -0.5), (0, -1.0), (1, -1.0), (2, -7.0)])));
    assert_eq!(search.select(&request), [], "of equals what is complete came first");
    assert_eq!(search.answer().iter().map(|one| one.path.tokens[0]).collect::<Vec<_>>(), [9, 0]);
}

#[test]
fn a_longer_sequence_may_become_better_by_its_length() {
    let request = Request { stop_token_ids: vec![0, 9], ..request(2, 1, 1.0) };
    let mut search = BeamSearch::new(&request, 3);
    search.offer(0, candidates([(9, -0.5), (0, -0.625), (1, -1.5), (2, -7.0)]));
    assert_eq!(search.select(&request).len(), 2, "-1.5 / 2 is worse than -0.625 / 1, and -1.5 / 3 is better");
}

#[test]
fn with_a_negative_penalty_the_next_token_may_be_the_best_end() {
    let request = Request { stop_token_ids: vec![9], ..request(1, 1, -1.0) };
    let mut search = BeamSearch::new(&request, 10);
    search.offer(0, candidates([(1, -0.125), (9, -1.0), (2, -7.0), (3, -7.0)]));
    assert_eq!(search.select(&request).len(), 1, "-0.125 * 2 is better than -1 * 1, and -0.125 * 10 is worse");
}

#[test]
fn what_rounding_raised_above_certainty_is_certain() {
    let request = Request { stop_token_ids: vec![9], ..request(1, 1, 1.0) };
    let mut search = BeamSearch::new(&request, 10);
    search.offer(0, candidates([(9, 1e-6), (1, -20.0), (2, -20.0), (3, -20.0)]));
    assert_eq!(search.select(&request), []);
    assert!(search.answer().iter().all(|found| found.score.abs() < 1e-9));
}

#[test]
fn of_equal_beams_the_child_of_the_better_parent_goes_on() {
    let request = request(2, 1, 1.0);
    let mut search = BeamSearch::new(&request, 9);
    search.offer(0, candidates([(4, -1.0), (3, -1.0), (2, -1.0), (1, -1.0)]));
    let first = search.select(&request);
    assert_eq!(first.iter().map(|child| (child.sample, child.token)).collect::<Vec<_>>(), [(0, 4), (1, 3)]);
    assert!(!search.offer(1, candidates([(5, -1.0), (6, -1.0), (7, -1.0), (8, -1.0)])));
    assert!(search.offer(0, candidates([(1, -1.0), (2, -2.0), (3, -2.0), (4, -2.0)])));
    let children = search.select(&request);
    assert_eq!(children.iter().map(|child| (child.parent, child.token)).collect::<Vec<_>>(), [(0, 1), (1, 5)]);
}

#[test]
fn without_a_candidate_the_search_is_over() {
    let request = Request { stop_token_ids: vec![1, 2, 3, 4], min_tokens: 2, ..request(2, 1, 1.0) };
    let mut search = BeamSearch::new(&request, 9);
    search.offer(0, candidates([(1, -1.0), (2, -1.0), (3, -1.0), (4, -1.0)]));
    assert_eq!(search.select(&request), []);
    assert!(search.answer().is_empty());
}
