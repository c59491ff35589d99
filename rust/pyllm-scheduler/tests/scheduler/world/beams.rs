//! Beam searches: candidates of a beam, and the answer's log-probabilities.

use pyllm_scheduler::{Config, DeltaColumns, KvGroup, Request};

use super::requests::Known;
use crate::device::Row;
use crate::oracle::Prefix;

/// A row continues its request's prompt, and there is only one until the first candidates are known.
pub(super) fn check_beam(row: &Row, known: &Known) {
    let request = &known.request;
    let num_common = row.context.len().min(request.prompt.len());
    assert_eq!(row.context[..num_common], request.prompt[..num_common]);
    let num_sampled = if row.context.len() == num_common { request.n } else { 1 };
    assert!(row.sampled.is_empty() || row.sampled.len() == num_sampled as usize);
    assert!(known.samples.iter().any(|sample| !sample.is_finished && sample.ended.is_none()));
}

/// Every token of a beam comes with its log-probability and its rank among the candidates.
pub(super) fn check_beam_told(request: &Request, deltas: &DeltaColumns, row: usize) {
    let entries = &deltas.logprobs;
    let mut context = request.prompt.clone();
    for index in deltas.token_starts[row] as usize..deltas.token_starts[row + 1] as usize {
        let (start, end) = (entries.starts[index] as usize, entries.starts[index + 1] as usize);
        assert_eq!(end, start + 1);
        let token = deltas.tokens[index];
        let candidate = candidates(request, &context)[entries.ranks[start] as usize - 1];
        assert_eq!((candidate.0, candidate.1), (token, entries.values[start]));
        assert_eq!(entries.ids[start], token);
        context.push(token);
    }
}

/// The candidates of a row that samples, if it is a beam's.
pub(super) fn likeliest(request: &Request, row: &Row) -> Vec<(i32, f32)> {
    if request.beam_width == 0 || row.sampled.is_empty() {
        return Vec::new();
    }
    candidates(request, &row.context)
}

/// Blocks of all beams of a request at their end, in all groups: they share those that the prompt fills, except in
/// windows, where each beam has the blocks that a chunk reads.
pub(super) fn num_blocks(request: &Request, length: u32, config: &Config, largest_chunk: u32) -> u32 {
    let (block_size, width) = (config.block_size, request.beam_width.max(1));
    let (num_all, num_shared) = (length.div_ceil(block_size), request.prompt.len() as u32 / block_size);
    let of_group = |group: &KvGroup| match group.window {
        None => num_shared + (num_all - num_shared) * width,
        Some(window) => num_all.min((window - 1 + largest_chunk).div_ceil(block_size) + 1) * width,
    };
    config.kv_groups.iter().map(of_group).sum()
}

fn candidates(request: &Request, context: &[i32]) -> Vec<(i32, f32)> {
    let root = Prefix::empty(request, "");
    context.iter().fold(root, |prefix, &token| prefix.then(token)).likeliest(2 * request.beam_width)
}
