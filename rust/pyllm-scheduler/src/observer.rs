//! Records of what happened, for callers: reasons, counters, reports of requests, and recordings. The other parts tell it
//! of events; it decides nothing.

pub(crate) mod explain;
pub(crate) mod load_report;
pub(crate) mod reports;
pub(crate) mod stats;

use crate::arena::Key;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::kv::loads::EndedLoad;
use crate::observer::explain::{Decision, Decisions, Reason};
use crate::observer::load_report::PackedLoad;
use crate::observer::reports::EndedRequests;
use crate::observer::stats::Stats;
use crate::plan::Plan;
use crate::recorder::{Input, MAGIC, Recorder};
use crate::request::Finish;
use crate::steps::Turn;
use crate::table::sequence::{LiveRequest, Sequence};

pub(crate) struct Observer {
    counters: Stats, // its gauges stay 0
    decisions: Decisions,
    ended: EndedRequests,
    recorder: Option<Recorder>,
    num_inputs: u64,
    packed_load: PackedLoad,
    committed_at: f64, // time of the last commit, by the scheduler's clock and measured step times
}

/// The cached prefix of a sequence at its first admission, in tokens.
pub(crate) struct PrefixLookup {
    pub(crate) known: u32,
    pub(crate) cached: u32,
    /// Cached ones that were on the host.
    pub(crate) on_host: u32,
    /// Cached ones that an asynchronous load has brought.
    pub(crate) loaded: u32,
}

impl Observer {
    pub(crate) fn new() -> Self {
        Self {
            counters: Stats::default(),
            decisions: Decisions::default(),
            ended: EndedRequests::default(),
            recorder: None,
            num_inputs: 0,
            packed_load: PackedLoad::default(),
            committed_at: f64::NEG_INFINITY,
        }
    }
}

/// Recording.
impl Observer {
    /// See `Scheduler::start_recording`.
    pub(crate) fn start_recording(&mut self, config: &Config) -> Result<()> {
        if self.num_inputs > 0 {
            return Err(Error::NotNew { call: "start_recording" });
        }
        self.recorder = Some(Recorder::new(MAGIC, config));
        Ok(())
    }

    pub(crate) fn take_recording(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map_or(Vec::new(), Recorder::take)
    }

    pub(crate) fn decisions_hash(&self) -> Option<u64> {
        self.recorder.as_ref().map(Recorder::hash)
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Records a call that is about to change something.
    pub(crate) fn record(&mut self, input: impl FnOnce() -> Input) {
        self.num_inputs += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&input());
        }
    }

    /// Records `Scheduler::schedule`, with its plan.
    pub(crate) fn record_plan(&mut self, now: f64, plan: Option<&Plan>) {
        self.num_inputs += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.record_plan(&Input::Schedule { now }, plan);
        }
    }
}

/// Events of planning.
impl Observer {
    /// See `Decisions::push`.
    pub(crate) fn decided(
        &mut self,
        decision: Decision,
        stopped: Option<Key<Sequence>>,
        cut: Option<Reason>,
        turn: Turn,
    ) {
        self.decisions.push(decision, stopped, cut, turn);
    }

    /// A step was planned.
    pub(crate) fn planned(&mut self, num_tokens: u32) {
        self.counters.num_steps += 1;
        self.counters.num_computed_tokens += u64::from(num_tokens);
        if num_tokens > 0 {
            self.counters.iteration_tokens.add(num_tokens.into()); // others only move blocks
        }
    }

    /// A running sequence was preempted: swapped to the host, or to be recomputed.
    pub(crate) fn preempted(&mut self, is_swapped: bool) {
        self.counters.num_preemptions += 1;
        self.counters.num_swapped += u64::from(is_swapped);
    }

    /// A sequence was admitted for the first time, with so many tokens to compute.
    pub(crate) fn began(&mut self, num_uncomputed: u32, lookup: Option<PrefixLookup>) {
        self.counters.num_uncached_tokens += u64::from(num_uncomputed);
        if let Some(lookup) = lookup {
            self.counters.prefix_queries += u64::from(lookup.known);
            self.counters.prefix_hits += u64::from(lookup.cached);
            self.counters.host_prefix_hits += u64::from(lookup.on_host);
            self.counters.loaded_prefix_hits += u64::from(lookup.loaded);
        }
    }
}

/// Events of commits and endings.
impl Observer {
    /// A step planned at `planned_at` has ended. It ran from then, or from the end of the step before, for `seconds`.
    pub(crate) fn committed(&mut self, now: f64, planned_at: f64, seconds: f64) {
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        self.committed_at = now.max(self.committed_at.max(planned_at) + seconds);
    }

    pub(crate) fn committed_at(&self) -> f64 {
        self.committed_at
    }

    /// A row verified drafts.
    pub(crate) fn verified(&mut self, num_drafts: usize, num_accepted: usize) {
        self.counters.num_drafts += num_drafts as u64;
        self.counters.num_accepted_drafts += num_accepted as u64;
        self.counters.accepted_drafts.add(num_accepted as u64);
    }

    /// A sample ended with so many output tokens.
    pub(crate) fn sample_ended(&mut self, live: &LiveRequest, sample: u32, finish: Finish, num_tokens: usize) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_finish(live.request.id, sample, finish, num_tokens);
        }
    }

    /// A request has passed its deadline.
    pub(crate) fn expired(&mut self) {
        self.counters.num_expired += 1;
    }

    /// A request and all its samples have ended.
    pub(crate) fn request_ended(&mut self, live: LiveRequest, now: f64, finish: Finish) {
        self.counters.num_ended_preemptions += u64::from(live.num_preemptions);
        self.counters.request_preemptions.add(live.num_preemptions.into());
        self.ended.push(live, now, finish);
    }

    /// A load has ended.
    pub(crate) fn load_ended(&mut self, load: EndedLoad) {
        let num_tokens = u64::from(load.num_tokens);
        if load.failed {
            self.counters.num_failed_loads += 1;
            self.counters.num_uncached_tokens += if load.is_first { num_tokens } else { 0 };
        }
    }

    /// A committed step has read a load's tokens.
    pub(crate) fn load_read(&mut self, load: EndedLoad) {
        if load.is_first {
            self.counters.prefix_hits += u64::from(load.num_tokens);
            self.counters.loaded_prefix_hits += u64::from(load.num_tokens);
        }
    }

    /// Blocks were handed over for saving.
    pub(crate) fn saves_begun(&mut self, num_saves: usize) {
        self.counters.num_saves += num_saves as u64;
    }
}

/// Answers to callers.
impl Observer {
    /// The last decisions, oldest first.
    pub(crate) fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    pub(crate) fn ended(&self) -> &EndedRequests {
        &self.ended
    }

    pub(crate) fn ended_mut(&mut self) -> &mut EndedRequests {
        &mut self.ended
    }

    pub(crate) fn counters(&self) -> &Stats {
        &self.counters
    }

    /// The encoded load, made anew by `pack` unless it is recent. Several clients ask in turn, and a scan of all
    /// sequences takes time. If there are many, one input hardly changes the load.
    pub(crate) fn packed_load(&mut self, num_sequences: usize, pack: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        self.packed_load.get(self.num_inputs, num_sequences, pack)
    }
}
