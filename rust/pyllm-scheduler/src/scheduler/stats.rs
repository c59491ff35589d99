//! The scheduler in numbers.

use super::Scheduler;

/// Gauges of this moment, and counters since the start. Sequences, not requests, run, wait and are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name says it; the ones that do not are documented")]
pub struct Stats {
    pub num_requests: u64,
    pub num_running: u64,
    pub num_waiting: u64,
    pub num_held: u64,
    pub num_blocks: u64,
    /// Blocks nothing refers to, those included that the prefix cache still knows.
    pub num_free_blocks: u64,
    pub num_used_blocks: u64,
    /// Blocks that the prefix cache knows, in use or free.
    pub num_cached_blocks: u64,
    pub num_preemptions: u64,
    /// Tokens looked up in the prefix cache at first admission, and those found.
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    /// Tokens planned.
    pub num_computed_tokens: u64,
    /// Steps planned.
    pub num_steps: u64,
}

impl Scheduler {
    /// Gauges and counters; costs nothing that grows with load.
    pub fn stats(&self) -> Stats {
        let num_blocks = u64::from(self.config.num_blocks);
        let num_free_blocks = u64::from(self.cache.num_free());
        Stats {
            num_requests: self.requests.len() as u64,
            num_running: self.running.len() as u64,
            num_waiting: self.waiting.len() as u64,
            num_held: self.num_held as u64,
            num_blocks,
            num_free_blocks,
            num_used_blocks: num_blocks - num_free_blocks,
            num_cached_blocks: self.cache.num_cached() as u64,
            num_preemptions: self.counters.num_preemptions,
            prefix_queries: self.counters.prefix_queries,
            prefix_hits: self.counters.prefix_hits,
            num_computed_tokens: self.counters.num_computed_tokens,
            num_steps: self.counters.num_steps,
        }
    }
}
