//! Explanations: the reason for which each sequence waits, the share of each running one, and the last decisions.
//! Reasons are derived on request from records of the last step, so that a long queue costs nothing.

use std::collections::VecDeque;

use crate::arena::Key;
use crate::config::Pause;
use crate::ids::StepId;
use crate::steps::Turn;
use crate::table::Table;
use crate::table::sequence::{Beam, LiveRequest, Sample, Sequence, State};

/// Number of steps kept.
const MAX_DECISIONS: usize = 1024;

/// The reason for which a sequence got no tokens in the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It arrived or returned after the last step was planned.
    New,
    /// The caller holds it.
    Held,
    /// Its keys and values are being loaded from an external store.
    Loading,
    /// Another sample of its request computes the prompt, or the round of beams that it forks from.
    Forking,
    /// It is a beam with candidates; those of its siblings are being computed.
    Siblings,
    /// It cannot continue before a step in flight is committed.
    InFlight,
    /// Its rows in flight are void: the worker was not ready to sample, or the grammar forced other tokens.
    Grammar,
    /// The token budget of the step is used up: `max_num_batched_tokens`.
    Budget,
    /// More prefill would delay running streams beyond their target.
    InterTokenTarget,
    /// A later step takes it: in a pipeline, each step in flight has its share of the running sequences.
    Pipeline,
    /// The step may sample no more positions, or carry no more log-probabilities.
    Samples,
    /// All slots are taken: `max_num_seqs`.
    Slots,
    /// All adapter slots are used by running requests: `max_loras`. Or that of its adapter is to become free for a
    /// sequence before it.
    Adapters,
    /// There are not enough free blocks for its tokens.
    Blocks,
    /// There is no free state for it to write to.
    States,
    /// There are enough free blocks, but not with the watermark above them.
    Watermark,
    /// There are enough free blocks, but the running sequences are expected to need them.
    Growth,
    /// The step preempted sequences so that others could continue; it admits none after that.
    Preempting,
    /// The scheduler is paused, for all requests or for those that have not begun.
    Paused,
    /// The step was for other requests: an isolated request shares no step, and while it lacks room the others wait.
    Isolation,
    /// A sequence before it in the policy's order was not admitted.
    Policy,
}

impl Reason {
    /// Its name in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Held => "held",
            Self::Loading => "loading",
            Self::Forking => "forking",
            Self::Siblings => "siblings",
            Self::InFlight => "in_flight",
            Self::Grammar => "grammar",
            Self::Budget => "budget",
            Self::InterTokenTarget => "inter_token_target",
            Self::Pipeline => "pipeline",
            Self::Samples => "samples",
            Self::Slots => "slots",
            Self::Adapters => "adapters",
            Self::Blocks => "blocks",
            Self::States => "states",
            Self::Watermark => "watermark",
            Self::Growth => "growth",
            Self::Preempting => "preempting",
            Self::Paused => "paused",
            Self::Isolation => "isolation",
            Self::Policy => "policy",
        }
    }
}

/// The state of one sample of a request after the last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The sample.
    pub sample: u32,
    /// `waiting`, `preempted`, `swapped`, `paused`, `held`, `loading`, `running` or `finished`.
    pub state: &'static str,
    /// The reason for getting no tokens in the last step; none if it got some or has finished.
    pub reason: Option<Reason>,
    /// The names of its holders, separated by commas, if it is held.
    pub hold: Option<String>,
    /// Tokens of it that the last step computed.
    pub num_tokens: u32,
    /// Tokens with keys and values, and known tokens.
    pub num_computed: u32,
    /// See `num_computed`.
    pub num_known: u32,
}

/// A step's decision. `stop`: the reason for which the first in the queue was not admitted; none for an empty queue.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Decision {
    pub step: StepId,
    pub now: f64,
    pub num_rows: u32,
    pub num_tokens: u32,
    pub num_prefill_tokens: u32,
    pub num_admitted: u32,
    pub num_preempted: u32,
    /// Preempted sequences that were swapped to the host.
    pub num_swapped: u32,
    pub num_running: u32,
    pub num_waiting: u32,
    pub num_free_blocks: u32,
    pub stop: Option<Reason>,
}

/// The last decisions, oldest first.
#[derive(Default)]
pub(crate) struct Decisions {
    ring: VecDeque<Decision>,
    stopped: Option<Key<Sequence>>,
    cut: Option<Reason>,
    turn: Turn,
}

impl Decisions {
    /// Adds a decision. `stopped` was the first that was not admitted; `cut` is the reason for which a running sequence
    /// got no row, if any; `turn` has the requests that the step was for.
    pub(super) fn push(&mut self, decision: Decision, stopped: Option<Key<Sequence>>, cut: Option<Reason>, turn: Turn) {
        if self.ring.len() == MAX_DECISIONS {
            self.ring.pop_front();
        }
        self.ring.push_back(decision);
        self.stopped = stopped;
        self.cut = cut;
        self.turn = turn;
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.ring.iter()
    }
}

/// The state of the other parts, to explain it.
pub(crate) struct Explainer<'a> {
    pub(crate) decisions: &'a Decisions,
    pub(crate) table: &'a Table,
    pub(crate) next_step: StepId,
    pub(crate) is_pipelined: bool,
    pub(crate) pause: Pause,
}

impl Explainer<'_> {
    /// The state of each sample of a request, with its reason.
    pub(crate) fn explain(&self, live: &LiveRequest) -> Vec<Explanation> {
        let samples = live.samples.iter().enumerate();
        samples.map(|(index, sample)| self.explain_sample(live, index as u32, *sample)).collect()
    }

    fn explain_sample(&self, live: &LiveRequest, sample: u32, place: Sample) -> Explanation {
        let finished = Explanation {
            sample,
            state: "finished",
            reason: None,
            hold: None,
            num_tokens: 0,
            num_computed: 0,
            num_known: live.request.prompt.len() as u32,
        };
        let key = match place {
            Sample::Finished => return finished,
            Sample::Unforked => {
                let hold = live.hold();
                return Explanation { state: "waiting", reason: Some(Reason::Forking), hold, ..finished };
            }
            Sample::Live(key) => key,
        };
        let sequence = &self.table[key];
        let had_share = self.pause != Pause::All
            && sequence.slot().is_some()
            && sequence.last_share > 0
            && self.next_step.0 == sequence.last_step.0 + 1;
        Explanation {
            state: match sequence.state() {
                State::Waiting => "waiting",
                State::Preempted => "preempted",
                State::Swapped => "swapped",
                State::Held => "held",
                State::Loading => "loading",
                State::Paused => "paused",
                State::Running(_) => "running",
            },
            reason: (!had_share).then(|| self.reason(key)),
            hold: live.hold(),
            num_tokens: if had_share { sequence.last_share } else { 0 },
            num_computed: sequence.num_computed,
            num_known: sequence.num_known(),
            ..finished
        }
    }

    fn reason(&self, key: Key<Sequence>) -> Reason {
        let sequence = &self.table[key];
        let last = self.decisions.ring.back();
        let sat_out = !self.decisions.turn.admits(sequence.request);
        match sequence.state() {
            State::Held => Reason::Held,
            State::Loading => Reason::Loading,
            _ if self.pause == Pause::All => Reason::Paused,
            _ if sequence.beam == Beam::Waiting => Reason::Siblings,
            _ if sequence.since >= self.table.num_decisions() => Reason::New,
            State::Running(_) if sequence.comes_to_nothing() => Reason::Grammar,
            State::Running(_) if !sequence.may_have_row(self.is_pipelined) => Reason::InFlight,
            State::Running(_) if sat_out => Reason::Isolation,
            // Without a cut, the sequence waited for the commit of a step in flight, which has happened since.
            State::Running(_) => self.decisions.cut.unwrap_or(Reason::InFlight),
            _ if self.pause == Pause::New && !self.table.pair(key).1.has_begun() => Reason::Paused,
            _ if self.table.lacked_adapter(key) => Reason::Adapters,
            _ if self.decisions.stopped == Some(key) => last.and_then(|decision| decision.stop).unwrap_or(Reason::New),
            _ if sequence.num_in_flight > 0 => Reason::InFlight,
            _ if sat_out => Reason::Isolation,
            _ if self.table.was_kept_from_adapter(key) => Reason::Adapters,
            _ => Reason::Policy,
        }
    }
}
