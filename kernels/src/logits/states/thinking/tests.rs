//! Tests against a naive model, which looks at the whole output each time.

use proptest::prelude::*;

use super::super::tests::{VOCABULARY, plain_rules};
use super::super::{Rules, Slots, Thinking};

/// The token that must follow an output, from a look at all of it.
pub(crate) fn forced(thinking: &Thinking, prompt: &[i32], output: &[i32]) -> Option<i32> {
    let opened = thinking.starts.is_empty() || thinking.starts.iter().any(|start| prompt.ends_with(start));
    let begins = |&length: &usize| thinking.starts.iter().any(|start| start[..] == output[..length]);
    let since = if opened { 0 } else { (0..=output.len()).find(begins)? };
    let reasoning = &output[since..];
    let has = |end: &Vec<i32>| reasoning.windows(end.len()).any(|window| window == end);
    if reasoning.len() < thinking.budget || thinking.ends.iter().any(has) {
        return None;
    }
    let begun = |length: usize| {
        let mut ends = thinking.ends.iter().filter(move |end| end.len() > length);
        ends.find(|end| reasoning.ends_with(&end[..length])).map(|end| end[length])
    };
    (0..4).rev().find_map(begun)
}

pub(crate) fn thinking() -> impl Strategy<Value = Thinking> {
    let marks = || prop::collection::vec(prop::collection::vec(0..3_i32, 1..4), 0..3);
    (0..4_usize, marks(), marks()).prop_map(|(budget, starts, ends)| Thinking { budget, starts, ends })
}

proptest! {
    #[test]
    fn reasoning_ends_when_its_budget_is_used_up(
        thinking in thinking(),
        prompt in prop::collection::vec(0..3_i32, 0..4),
        wanted in prop::collection::vec(0..3_i32, 30),
    ) {
        let mut states = Slots::new(1, VOCABULARY);
        let rules = Rules { thinking: thinking.clone(), ..plain_rules() };
        states.initialise(0, &prompt, prompt.len(), rules.clone()).expect("all fits");
        let mut output = Vec::new();
        for token in wanted {
            let edits = states.edits(&[0], &[0, 0], &[]).expect("all fits");
            let token = edits.ids.first().copied().unwrap_or(token);
            output.push(token);
            // From the whole history, or as the next token of what is known.
            if token == 0 {
                let history = [&*prompt, &*output].concat();
                states.initialise(0, &history, prompt.len(), rules.clone()).expect("all fits");
            } else {
                states.push(&[0], &[0, 1], &[token]).expect("all fits");
            }
        }
        let opened = thinking.starts.is_empty() || thinking.starts.iter().any(|start| prompt.ends_with(start));
        let begins = |&length: &usize| thinking.starts.iter().any(|start| start[..] == output[..length]);
        let since = if opened { Some(0) } else { (0..=output.len()).find(begins) };
        if let Some(since) = since.filter(|_| !thinking.ends.is_empty()) {
            let most = since + thinking.budget + thinking.ends.iter().map(Vec::len).max().unwrap_or(0);
            let reasoning = &output[since..most];
            let has = |end: &Vec<i32>| reasoning.windows(end.len()).any(|window| window == end);
            prop_assert!(thinking.ends.iter().any(has));
        }
    }
}

#[test]
fn an_end_that_has_begun_is_completed() {
    let thinking = Thinking { budget: 3, starts: vec![vec![7], vec![8, 7]], ends: vec![vec![4, 5, 6], vec![2]] };
    let next = |prompt: &[i32], output: &[i32], drafts: &[i32]| {
        let mut states = Slots::new(1, VOCABULARY);
        let rules = Rules { thinking: thinking.clone(), ..plain_rules() };
        states.initialise(0, &[prompt, output].concat(), prompt.len(), rules).expect("all fits");
        states.edits(&[0], &[0, drafts.len() as i32], drafts).expect("all fits").ids.first().copied()
    };
    assert_eq!(next(&[7], &[1, 1], &[]), None);
    assert_eq!(next(&[7], &[1, 1, 1], &[]), Some(4));
    assert_eq!(next(&[7], &[1], &[1, 1]), Some(4));
    assert_eq!(next(&[7], &[1, 1, 4], &[]), Some(5));
    assert_eq!(next(&[7], &[1, 4, 5], &[]), Some(6));
    assert_eq!(next(&[7], &[1, 1, 1, 4], &[5]), Some(6));
    assert_eq!(next(&[7], &[1, 1, 1, 4, 5, 6], &[]), None);
    assert_eq!(next(&[7], &[2, 1, 1, 1], &[]), None);
    assert_eq!(next(&[1], &[8, 7, 1, 1, 1], &[]), Some(4));
    assert_eq!(next(&[1], &[8, 1, 7, 1, 1, 1], &[]), None);
}
