//! Explanations: each live sample has tokens in the last step or one reason, and the reason fits the visible state.

use std::collections::BTreeMap;

use pyllm_scheduler::{Decision, Explanation, Pause, Plan, Reason, Stats};

use super::World;
use super::requests::Known;
use super::steps::InFlight;

const MAX_DECISIONS: usize = 1024;

impl World {
    pub(super) fn check_decision(&mut self, plan: Option<&Plan>, before: &Stats) {
        assert_eq!(self.scheduler.decisions().len(), self.num_schedules.min(MAX_DECISIONS));
        let decision = self.last_decision();
        let stats = self.scheduler.stats();
        let (num_rows, num_tokens) = plan.map_or((0, 0), |plan| (plan.num_rows(), plan.num_tokens()));
        assert_eq!((decision.num_rows, decision.num_tokens), (num_rows, num_tokens));
        assert!(plan.is_none_or(|plan| plan.step == decision.step));
        assert_eq!(u64::from(decision.num_running), stats.num_running);
        assert_eq!(u64::from(decision.num_waiting), stats.num_waiting);
        assert_eq!(u64::from(decision.num_preempted), stats.num_preemptions - before.num_preemptions);
        assert_eq!(u64::from(decision.num_swapped), stats.num_swapped - before.num_swapped);
        assert_eq!(decision.stop.is_some(), stats.num_waiting > 0, "the queue was served to its end, or stopped");
    }

    /// Checks reasons after a call of `schedule`.
    pub(super) fn check_reasons(&mut self) {
        let has_drafts = self.in_flight.back().is_some_and(InFlight::has_drafts);
        let decision = self.last_decision();
        let mut num_tokens = 0;
        let mut num_stopped = 0;
        let mut seen = Vec::new();
        for known in self.requests.iter().filter(|known| known.is_live()) {
            // It may have ended, without its client having the delta.
            let Ok(samples) = self.scheduler.explain(known.request.client, known.request.id) else { continue };
            assert_eq!(samples.len(), known.samples.len());
            let num_prompt_tokens = known.request.prompt.len() as u32;
            for (one, sample) in samples.iter().zip(0..) {
                assert_eq!(one.sample, sample);
                // A sequence that is about to fork may lack one token, too.
                let has_output = one.num_known > num_prompt_tokens;
                let is_stream = one.state == "running" && one.num_known == one.num_computed + 1 && has_output;
                let is_passed = matches!(one.reason, Some(Reason::Budget | Reason::Samples));
                assert!(!(is_stream && is_passed && has_drafts), "drafts leave every stream its row: {one:?}");
                self.check_explanation(known, one, &decision);
                num_tokens += one.num_tokens;
                // One that lacks an adapter's slot does so whatever else the step has no room for.
                let is_stopped = one.reason == decision.stop || one.reason == Some(Reason::Adapters);
                num_stopped += u32::from(is_stopped && one.reason.is_some());
                let is_there = self.device.adapters().contains(&known.request.adapter_number);
                let is_kept = one.reason == Some(Reason::Adapters) && is_there;
                seen.extend(is_kept.then_some("adapters kept for running requests alone"));
                seen.extend(one.reason.map(Reason::name));
            }
        }
        assert!(decision.num_rows == 0 || num_tokens == decision.num_tokens, "the shares make up the step");
        assert!(decision.stop.is_none() || num_stopped > 0, "the first in the queue knows why it waits");
        for reason in seen {
            self.saw(reason, 1);
        }
    }

    fn check_explanation(&self, known: &Known, one: &Explanation, decision: &Decision) {
        if one.state == "finished" {
            assert_eq!((one.num_tokens, one.reason), (0, None));
            return;
        }
        assert!((one.num_tokens > 0) != one.reason.is_some(), "a share or a reason: {one:?}");
        assert_eq!(one.hold.is_some(), known.is_held());
        let is_in = |states: &[&str]| assert!(states.contains(&one.state), "{one:?}");
        let queued = ["waiting", "preempted", "swapped"];
        let stats = self.scheduler.stats();
        let config = &self.config;
        let mut holds = true;
        match one.reason {
            None => is_in(&["running"]),
            Some(Reason::New) => panic!("it came before the step was planned: {one:?}"),
            Some(Reason::Held) => is_in(&["held"]),
            Some(Reason::Loading) => {
                is_in(&["loading"]);
                holds = stats.num_loading > 0;
            }
            Some(Reason::Forking) => is_in(&["waiting"]),
            Some(Reason::Siblings) => {
                is_in(&["running", "paused"]);
                holds = known.request.beam_width > 1;
            }
            Some(Reason::InFlight) => holds = !self.in_flight.is_empty(),
            Some(Reason::Grammar) => {
                is_in(&["running"]);
                holds = known.request.stateful && !self.in_flight.is_empty();
            }
            Some(Reason::Budget) => holds = decision.num_tokens == config.max_num_batched_tokens,
            Some(Reason::InterTokenTarget) => {
                let has_target = |known: &Known| known.request.tpot_target.is_some();
                holds = config.inter_token_target > 0.0 || self.requests.iter().any(has_target);
            }
            Some(Reason::Pipeline) => holds = config.pipeline_parallel_size > 1,
            Some(Reason::Samples) => holds = config.max_num_seqs > 1,
            Some(Reason::Slots) => {
                is_in(&queued);
                holds = stats.num_running == u64::from(config.max_num_seqs);
            }
            Some(Reason::Adapters) => {
                is_in(&queued);
                let counts = self.scheduler.adapter_counts();
                let num_used = counts.iter().filter(|&&(_, num_running, _)| num_running > 0).count();
                holds = known.request.adapter_number > 0 && num_used == config.max_loras as usize;
            }
            Some(Reason::Blocks) => {}
            Some(Reason::States) => {
                is_in(&queued);
                holds = config.num_states > 0;
            }
            Some(Reason::Watermark) => {
                is_in(&queued);
                holds = config.watermark > 0.0;
            }
            Some(Reason::Growth) => {
                is_in(&queued);
                holds = config.expected_growth > 0.0;
            }
            Some(Reason::Preempting) => holds = decision.num_preempted + decision.num_admitted > 0,
            Some(Reason::Paused) => {
                let has_output = one.num_known > known.request.prompt.len() as u32;
                holds = match config.pause {
                    Pause::None => false,
                    Pause::New => !has_output && queued.contains(&one.state),
                    Pause::All => one.num_tokens == 0,
                };
            }
            Some(Reason::Isolation) => {
                is_in(&["running", "waiting", "preempted", "swapped"]);
                holds = self.alone.is_some();
            }
            Some(Reason::Policy) => {
                is_in(&queued);
                // Those that lack an adapter's slot stop no others.
                holds = decision.stop.is_some_and(|stop| stop != Reason::Adapters);
            }
        }
        assert!(holds, "the reason does not fit: {one:?}, {decision:?}");
    }

    /// Checks the numbers of sequences with each adapter.
    pub(super) fn check_adapters(&self) {
        let slots = self.device.adapters().iter().filter(|&&adapter| adapter > 0);
        let mut counts: BTreeMap<u32, (u32, u32)> = slots.map(|&adapter| (adapter, (0, 0))).collect();
        for known in self.requests.iter().filter(|known| known.request.adapter_number > 0) {
            let samples = self.scheduler.explain(known.request.client, known.request.id).unwrap_or_default();
            let live = samples.iter().filter(|one| one.state != "finished" && one.reason != Some(Reason::Forking));
            for one in live {
                let (running, waiting) = counts.entry(known.request.adapter_number).or_default();
                *if one.state == "running" { running } else { waiting } += 1;
            }
        }
        let counts = counts.into_iter().map(|(adapter, (running, waiting))| (adapter, running, waiting));
        assert_eq!(self.scheduler.adapter_counts(), counts.collect::<Vec<_>>());
    }

    fn last_decision(&self) -> Decision {
        *self.scheduler.decisions().last().expect("a step was planned")
    }
}
