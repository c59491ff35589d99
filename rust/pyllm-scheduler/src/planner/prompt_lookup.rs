//! Prompt lookup decoding: proposes the tokens that followed an earlier occurrence of a sequence's last tokens. Knows
//! no scheduler. (Saxena, 2023: prompt lookup decoding; `ngram` in other engines.)

/// Shortest match in tokens; shorter ones say little about the next token.
const MIN_MATCH: usize = 3;
/// Longest match in tokens.
const MAX_MATCH: usize = 16;
/// Tokens to search backwards: takes some microseconds.
const WINDOW: usize = 4096;

/// Fills `drafts` with the tokens after the longest match, the latest one of that length: as many as the match is long,
/// at most `most`. A match that overlaps its own end yields a repetition. None if fewer than `MIN_MATCH` tokens match.
pub(crate) fn look_up(prompt: &[i32], output: &[i32], most: usize, drafts: &mut Vec<i32>) {
    drafts.clear();
    let length = prompt.len() + output.len();
    let token = |index: usize| if index < prompt.len() { prompt[index] } else { output[index - prompt.len()] };
    let (mut longest, mut next) = (0, length);
    for end in ends_like_the_last(prompt, output) {
        // Compares the tokens before `end` with the last ones.
        let num_equal = (1..=end.min(MAX_MATCH)).take_while(|&back| token(end - back) == token(length - back)).count();
        if num_equal > longest {
            (longest, next) = (num_equal, end);
        }
        if longest == MAX_MATCH {
            break;
        }
    }
    if longest < MIN_MATCH {
        return;
    }
    for index in next..next + longest.min(most) {
        drafts.push(if index < length { token(index) } else { drafts[index - length] });
    }
}

/// The positions after each token that equals the last one, latest first. The slices are searched one by one, as this
/// loop takes most of the time.
fn ends_like_the_last<'a>(prompt: &'a [i32], output: &'a [i32]) -> impl Iterator<Item = usize> + 'a {
    let last = output.last().or(prompt.last()).copied();
    let equal = move |tokens: &'a [i32], start: usize| {
        let places = tokens.iter().enumerate().rev();
        places.filter(move |(_, token)| Some(**token) == last).map(move |(index, _)| start + index + 1)
    };
    let prompt_window = WINDOW.saturating_sub(output.len()).min(prompt.len());
    let output_window = WINDOW.min(output.len());
    let (prompt_start, output_start) = (prompt.len() - prompt_window, output.len() - output_window);
    let in_output = equal(&output[output_start..], prompt.len() + output_start);
    in_output.chain(equal(&prompt[prompt_start..], prompt_start)).skip(1) // the last one itself
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drafts(prompt: &[i32], output: &[i32], most: usize) -> Vec<i32> {
        let mut drafts = vec![99];
        look_up(prompt, output, most, &mut drafts);
        drafts
    }

    #[test]
    fn what_came_after_the_same_tokens_comes_again() {
        assert_eq!(drafts(&[7, 1, 2, 3, 4, 5, 6], &[9, 1, 2, 3], 5), [4, 5, 6]);
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 6, 1, 2], &[3], 2), [4, 5]);
    }

    #[test]
    fn the_longest_match_is_taken_and_of_equal_ones_the_last() {
        assert_eq!(drafts(&[0, 1, 2, 3, 50, 9, 1, 2, 3, 60, 0, 1, 2, 3], &[], 1), [50]);
        assert_eq!(drafts(&[1, 2, 3, 50, 1, 2, 3, 60, 8, 1, 2, 3], &[], 1), [60]);
    }

    #[test]
    fn two_tokens_say_too_little() {
        assert_eq!(drafts(&[1, 2, 3], &[1, 2], 4), []);
        assert_eq!(drafts(&[], &[1], 4), []);
        assert_eq!(drafts(&[], &[], 4), []);
    }

    #[test]
    fn a_loop_goes_on_beyond_the_last_token() {
        assert_eq!(drafts(&[5, 5, 5, 5], &[], 6), [5, 5, 5]);
        assert_eq!(drafts(&[1, 2, 1, 2, 1, 2], &[1, 2, 1], 5), [2, 1, 2, 1, 2]);
    }

    #[test]
    fn what_lies_far_back_is_not_looked_at() {
        let far: Vec<i32> = [1, 2, 3, 4].into_iter().chain(100..5000).chain([1, 2, 3]).collect();
        assert_eq!(drafts(&far, &[], 4), []);
        assert_eq!(drafts(&far[2000..], &[100, 101, 102], 1), []);
        assert_eq!(drafts(&far[2000..], &far[2000..2003], 1), [far[2003]]);
    }

    proptest! {
        /// The split into prompt and output does not matter, and the drafts are those of a naive search.
        #[test]
        fn drafts_are_what_followed(tokens in prop::collection::vec(0..3_i32, 0..40), cut in 0..40_usize, most in 0..9_usize) {
            let cut = cut.min(tokens.len());
            let found = drafts(&tokens[..cut], &tokens[cut..], most);
            prop_assert_eq!(&found, &drafts(&tokens, &[], most));
            let all: Vec<i32> = tokens.iter().chain(&found).copied().collect();
            let length = tokens.len();
            let suffix_at = |end: usize, size: usize| size <= end && tokens[end - size..end] == tokens[length - size..];
            let longest = (1..=MAX_MATCH.min(length)).rev().find(|&size| (1..length).any(|end| suffix_at(end, size)));
            match longest.filter(|&size| size >= MIN_MATCH) {
                None => prop_assert_eq!(found.len(), 0),
                Some(size) => {
                    prop_assert_eq!(found.len(), size.min(most));
                    let end = (1..length).rev().find(|&end| suffix_at(end, size)).unwrap();
                    prop_assert_eq!(&all[end..end + found.len()], &found[..]);
                }
            }
        }
    }
}
