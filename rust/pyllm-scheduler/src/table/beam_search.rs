//! Beam search: chooses the candidates that continue a request's beams, and the sequences of its answer. Knows tokens,
//! their log-probabilities and sample numbers, but no sequences, blocks or steps. The rules are those of vLLM's
//! `LLM.beam_search`.
//!
//! A round takes each beam's likeliest next tokens, twice as many as there are beams. A stop token completes a beam;
//! the best others continue until they reach the length limit and complete, too. The answer is the best completed
//! beams. A beam's score is its cumulative log-probability, divided by a power of its length; of equal scores, the one
//! with the better parent wins, then the likelier token.

use crate::request::{Finish, Request};

/// A token that may continue a beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) token: i32,
    pub(crate) logprob: f32,
}

/// A beam that continues with one token. The first child of a parent takes over its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) sample: u32,
    pub(crate) parent: u32,
    pub(crate) token: i32,
}

/// The tokens of a beam, each with its log-probability and its rank among its parent's candidates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    pub(crate) tokens: Vec<i32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) ranks: Vec<i32>,
    cumulative: f64,
}

/// A finished beam.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) path: Path,
    pub(crate) finish: Finish,
    score: f64,
}

pub(crate) struct BeamSearch {
    scoring: Scoring,
    live: Vec<Beam>,           // best first
    completed: Vec<Completed>, // best first, no more than are asked for
}

struct Beam {
    sample: u32,
    path: Path,
    candidates: Vec<Candidate>, // likeliest first; none until they are known
}

#[derive(Clone, Copy)]
struct Scoring {
    length_penalty: f64,
    num_prompt_tokens: u32,
    max_length: u32,
}

/// One candidate of one beam.
struct Extension {
    parent: usize,
    place: usize,
    cumulative: f64,
    score: f64,
}

impl BeamSearch {
    /// One beam without a token, in sample 0. Sequences end with `max_length` tokens, prompt included.
    pub(crate) fn new(request: &Request, max_length: u32) -> Self {
        let scoring = Scoring {
            length_penalty: request.length_penalty,
            num_prompt_tokens: request.prompt.len() as u32,
            max_length,
        };
        Self {
            scoring,
            live: vec![Beam { sample: 0, path: Path::default(), candidates: Vec::new() }],
            completed: Vec::new(),
        }
    }

    /// Sets the candidates of a sample's beam, likeliest first. True: all beams have theirs, and `select` is due.
    pub(crate) fn offer(&mut self, sample: u32, candidates: Vec<Candidate>) -> bool {
        if let Some(beam) = self.live.iter_mut().find(|beam| beam.sample == sample) {
            beam.candidates = candidates;
        }
        self.live.iter().all(|beam| !beam.candidates.is_empty())
    }

    /// Ends a round. Gives the beams that continue, best first; none: the search is over.
    pub(crate) fn select(&mut self, request: &Request) -> Vec<Child> {
        let parents = std::mem::take(&mut self.live);
        let num_tokens = parents.first().map_or(0, |beam| beam.path.tokens.len() as u32) + 1;
        let width = request.beam_width as usize;
        let mut going_on = Vec::new();
        for (parent, beam) in parents.iter().enumerate() {
            for (place, candidate) in beam.candidates.iter().enumerate() {
                let cumulative = beam.path.cumulative + probable(candidate.logprob);
                if request.stop_token_ids.binary_search(&candidate.token).is_err() {
                    let score = self.scoring.score(cumulative, num_tokens);
                    going_on.push(Extension { parent, place, cumulative, score });
                } else if num_tokens >= request.min_tokens {
                    let score = self.scoring.score(cumulative, num_tokens - 1);
                    self.complete(width, score, Finish::Stop, || beam.path.then(*candidate, place));
                }
            }
        }
        going_on.sort_by(|one, other| other.score.total_cmp(&one.score)); // stable
        going_on.truncate(width);
        if self.scoring.num_prompt_tokens + num_tokens >= self.scoring.max_length {
            for one in going_on.drain(..) {
                let beam = &parents[one.parent];
                let path = || beam.path.then(beam.candidates[one.place], one.place);
                self.complete(width, one.score, Finish::Length, path);
            }
        }
        if self.is_decided(width, num_tokens, &going_on) {
            return Vec::new();
        }
        let children = children(&parents, &going_on, request.beam_width);
        for (one, child) in going_on.iter().zip(&children) {
            let beam = &parents[one.parent];
            let path = beam.path.then(beam.candidates[one.place], one.place);
            self.live.push(Beam { sample: child.sample, path, candidates: Vec::new() });
        }
        children
    }

    /// The best completed sequences, best first: fewer than asked for only if `min_tokens` left no candidate.
    pub(crate) fn answer(self) -> Vec<Completed> {
        self.completed
    }

    /// Each live beam: its sample, its tokens, and whether its candidates are known.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &[i32], bool)> {
        self.live.iter().map(|beam| (beam.sample, &beam.path.tokens[..], !beam.candidates.is_empty()))
    }

    fn complete(&mut self, width: usize, score: f64, finish: Finish, path: impl FnOnce() -> Path) {
        let place = self.completed.partition_point(|other| other.score.total_cmp(&score).is_ge());
        if place < width {
            self.completed.truncate(width - 1);
            self.completed.insert(place, Completed { path: path(), finish, score });
        }
    }

    /// Whether no live beam can still beat the worst of the best `width` completed ones.
    fn is_decided(&self, width: usize, num_tokens: u32, going_on: &[Extension]) -> bool {
        let Some(worst) = self.completed.get(width - 1) else { return false };
        going_on.iter().all(|one| self.scoring.bound(one.cumulative, num_tokens) <= worst.score)
    }
}

impl Path {
    fn then(&self, candidate: Candidate, place: usize) -> Self {
        let mut path = self.clone();
        path.tokens.push(candidate.token);
        path.logprobs.push(candidate.logprob);
        path.ranks.push(place as i32 + 1);
        path.cumulative += probable(candidate.logprob);
        path
    }
}

impl Scoring {
    /// The score of a sequence with this many output tokens, without a final stop token.
    fn score(self, cumulative: f64, num_tokens: u32) -> f64 {
        cumulative / self.divisor(self.num_prompt_tokens + num_tokens)
    }

    /// An upper bound of a continuation's score: the cumulative log-probability only falls, and the best divisor is
    /// that of the longest sequence or, with a negative penalty, of the shortest.
    fn bound(self, cumulative: f64, num_tokens: u32) -> f64 {
        self.score(cumulative, num_tokens).max(cumulative / self.divisor(self.max_length))
    }

    fn divisor(self, length: u32) -> f64 {
        f64::from(length).powf(self.length_penalty)
    }
}

/// Limits a probability to at most 1, since its logarithm may have been rounded up.
fn probable(logprob: f32) -> f64 {
    if logprob.is_nan() { f64::NEG_INFINITY } else { f64::from(logprob.min(0.0)) }
}

/// Assigns samples to the children: a parent's sample to its first child, free samples to the others.
fn children(parents: &[Beam], going_on: &[Extension], width: u32) -> Vec<Child> {
    let mut is_free = vec![true; width as usize];
    let mut is_first = vec![true; parents.len()];
    for one in going_on {
        is_free[parents[one.parent].sample as usize] = false;
    }
    let mut free = (0..width).filter(|&sample| is_free[sample as usize]);
    let child = |one: &Extension| {
        let beam = &parents[one.parent];
        let takes_over = std::mem::take(&mut is_first[one.parent]);
        let sample = if takes_over { Some(beam.sample) } else { free.next() };
        sample.map(|sample| Child { sample, parent: beam.sample, token: beam.candidates[one.place].token })
    };
    going_on.iter().filter_map(child).collect()
}

#[cfg(test)]
mod tests;
