//! Isolation of a request: its rows are in steps of their own, until each live sample has one more token.

use pyllm_scheduler::{Error, Explanation, Plan};

use super::World;
use super::model::known;
use crate::device::Row;

/// The isolated request, and its samples' tokens at the start.
pub(super) struct Alone {
    index: usize,
    lengths: Vec<u32>,
}

impl World {
    pub(super) fn isolate(&mut self, pick: usize) {
        let Some(index) = self.pick(pick) else { return };
        let (client, id) = self.name(index);
        match self.scheduler.isolate(client, id) {
            Ok(()) => {
                assert!(self.alone.is_none() && self.requests[index].is_live());
                let samples = self.scheduler.explain(client, id).expect("it is live");
                self.alone = Some(Alone { index, lengths: samples.iter().map(|one| one.num_known).collect() });
                self.saw("isolations", 1);
            }
            Err(Error::UnknownRequest { .. }) => assert!(!self.requests[index].is_live()),
            Err(Error::AlreadyIsolated { .. }) => assert_eq!(self.scheduler.isolated(), self.alone_name()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Ends the isolation of a request that is held now.
    pub(super) fn end_isolation_of(&mut self, index: usize) {
        self.alone = self.alone.take().filter(|alone| alone.index != index);
    }

    /// Ends requests at their deadlines without planning a step.
    pub(super) fn expire_only(&mut self, after: f64) {
        self.now += after;
        let num_expired = self.expire();
        let before = self.scheduler.stats();
        self.scheduler.expire(self.now).expect("time goes on");
        assert_eq!(self.scheduler.stats().num_expired, before.num_expired + num_expired);
        self.saw("deadlines without a step", num_expired);
    }

    /// Checks the isolation after every call.
    pub(super) fn check_isolation(&mut self) {
        let is_over = self.alone.as_ref().is_some_and(|alone| {
            let (client, id) = self.name(alone.index);
            self.scheduler.explain(client, id).map_or(true, |samples| has_gone_on(&samples, &alone.lengths))
        });
        if is_over {
            self.alone = None;
        }
        assert_eq!(self.scheduler.isolated(), self.alone_name());
    }

    /// Checks that a step has rows of the isolated request only, or of others only.
    pub(super) fn check_turn(&mut self, plan: &Plan, rows: &[Row]) {
        let Some(name) = self.alone_name() else { return };
        let is_its = |row: &&Row| {
            let request = &known(&self.requests, &row.request).request;
            (request.client, request.id) == name
        };
        let num_its = rows.iter().filter(is_its).count();
        assert!(num_its == 0 || num_its == rows.len(), "step {} has rows of both", plan.step);
        let what = if num_its > 0 { "steps of what is isolated" } else { "steps beside what is isolated" };
        self.saw(what, u64::from(!rows.is_empty()));
    }

    fn alone_name(&self) -> Option<(pyllm_scheduler::ClientId, pyllm_scheduler::RequestId)> {
        self.alone.as_ref().map(|alone| self.name(alone.index))
    }
}

/// Whether every live sample has more tokens than before. Samples that wait for a fork are not live.
fn has_gone_on(samples: &[Explanation], lengths: &[u32]) -> bool {
    let is_forking = |one: &Explanation| one.reason == Some(pyllm_scheduler::Reason::Forking);
    let mut live = samples.iter().filter(|one| one.state != "finished" && !is_forking(one));
    live.all(|one| lengths.get(one.sample as usize).is_none_or(|&length| one.num_known > length))
}
