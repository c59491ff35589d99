//! Isolation of one request: a step with its rows has no others, so a failure of that step must be its doing. Its steps
//! and those of the others alternate while both have work. It ends when every live sample has one more token.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::recorder::Input;
use crate::sequence::{LiveRequest, Sequence};

use super::explain::Reason;
use super::planning::Planning;
use super::step_scope::StepScope;
use super::{Scheduler, live_sequences};

/// The isolated request.
pub(super) struct Isolated {
    pub(super) request: Key<LiveRequest>,
    /// Output tokens of its samples at the start of the isolation.
    lengths: Vec<usize>,
    has_next_turn: bool,
    /// Whether its last turn had no rows for lack of room; that room is then not given to others.
    lacks_room: bool,
}

impl Scheduler {
    /// Separates this request's rows from all others', step by step, until each of its live samples has one more token,
    /// or it ends, or is held from now on. If it is held already, the isolation begins after the release.
    ///
    /// Errors: `UnknownRequest`, `AlreadyIsolated` if any request is isolated.
    pub fn isolate(&mut self, client: ClientId, request: RequestId) -> Result<()> {
        let key = self.find(client, request)?;
        let live = &self.requests[key];
        if let Some((client, request)) = self.isolated() {
            return Err(Error::AlreadyIsolated { client, request });
        }
        let mut lengths = vec![0; live.samples.len()];
        for key in live_sequences(live) {
            let sequence = &self.sequences[key];
            lengths[sequence.sample as usize] = sequence.output.len();
        }
        // If one isolation directly follows another, the other requests get a turn first.
        let has_next_turn = !matches!(self.decisions.turn(), StepScope::Only(_));
        self.isolated = Some(Isolated { request: key, lengths, has_next_turn, lacks_room: false });
        self.record(|| Input::Isolate { client, request });
        Ok(())
    }

    /// The isolated request, if any.
    pub fn isolated(&self) -> Option<(ClientId, RequestId)> {
        let request = &self.requests[self.isolated.as_ref()?.request].request;
        Some((request.client, request.id))
    }

    /// The turns to try, in this order, until one has rows.
    pub(super) fn turns(&self) -> [Option<StepScope>; 2] {
        match &self.isolated {
            None => [Some(StepScope::Everyone), None],
            Some(one) if one.has_next_turn => {
                [Some(StepScope::Only(one.request)), Some(StepScope::AllBut(one.request))]
            }
            Some(one) => [Some(StepScope::AllBut(one.request)), Some(StepScope::Only(one.request))],
        }
    }

    /// Notes the outcome of a turn.
    pub(super) fn end_turn(&mut self, planning: &Planning) {
        let Some(isolated) = &mut self.isolated else { return };
        let has_rows = planning.has_rows();
        if let StepScope::Only(_) = planning.turn {
            let lacks = matches!(
                planning.stop,
                Some((_, Reason::Slots | Reason::Blocks | Reason::Watermark | Reason::Growth | Reason::Preempting))
            );
            isolated.lacks_room = !has_rows && lacks;
        }
        if has_rows {
            isolated.has_next_turn = matches!(planning.turn, StepScope::AllBut(_));
        }
    }

    /// The first in the queue that may have a row in this turn.
    pub(super) fn first_waiting(&self, turn: StepScope) -> Option<Key<Sequence>> {
        match turn {
            StepScope::Everyone => self.queue.first(),
            StepScope::AllBut(_) if self.isolation_lacks_room() => None,
            StepScope::AllBut(one) => self.queue.first_of(|key| self.sequences[key].request != one),
            StepScope::Only(one) => {
                let keys = live_sequences(self.requests.get(one)?).into_iter();
                let queued = keys.filter(|&key| self.sequences[key].state.is_queued());
                queued.min_by_key(|&key| self.sequences[key].queue_key)
            }
        }
    }

    pub(super) fn isolation_lacks_room(&self) -> bool {
        self.isolated.as_ref().is_some_and(|isolated| isolated.lacks_room)
    }

    /// Ends the isolation if every live sample has one more token.
    pub(super) fn settle(&mut self) {
        let Some(Isolated { request, lengths, .. }) = &self.isolated else { return };
        let has_more = |key| {
            let sequence: &Sequence = &self.sequences[key];
            sequence.output.len() > lengths.get(sequence.sample as usize).copied().unwrap_or(0)
        };
        if live_sequences(&self.requests[*request]).into_iter().all(has_more) {
            self.isolated = None;
        }
    }

    /// Ends the isolation if it is this request's.
    pub(super) fn end_isolation_of(&mut self, request: Key<LiveRequest>) {
        self.isolated = self.isolated.take().filter(|isolated| isolated.request != request);
    }

    /// Notes that the request may have room again.
    pub(super) fn has_room_again(&mut self) {
        if let Some(isolated) = &mut self.isolated {
            isolated.lacks_room = false;
        }
    }
}
