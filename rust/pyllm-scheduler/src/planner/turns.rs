//! Turns: while a request is isolated, a step with its rows has no others, so a failure of that step must be its doing.
//! Its steps and those of the others alternate while both have work. It ends when every live sample has one more token.

use crate::arena::Key;
use crate::observer::explain::Reason;
use crate::steps::Turn;
use crate::table::Table;
use crate::table::sequence::{LiveRequest, Sequence};

/// The isolated request.
struct Isolated {
    request: Key<LiveRequest>,
    /// Output tokens of its samples at the start of the isolation.
    lengths: Vec<usize>,
    has_next_turn: bool,
    /// Whether its last turn had no rows for lack of room; that room is then not given to others.
    lacks_room: bool,
}

#[derive(Default)]
pub(crate) struct Turns {
    isolated: Option<Isolated>,
    last: Turn,
}

impl Turns {
    /// See `Scheduler::isolate`.
    pub(crate) fn isolate(&mut self, request: Key<LiveRequest>, table: &Table) {
        let live = &table[request];
        let mut lengths = vec![0; live.samples.len()];
        for key in live.sequences() {
            let sequence = &table[key];
            lengths[sequence.sample as usize] = sequence.output.len();
        }
        // If one isolation directly follows another, the other requests get a turn first.
        let has_next_turn = !matches!(self.last, Turn::Only(_));
        self.isolated = Some(Isolated { request, lengths, has_next_turn, lacks_room: false });
    }

    /// The isolated request, if it lives.
    pub(crate) fn isolated<'a>(&self, table: &'a Table) -> Option<&'a LiveRequest> {
        table.request(self.isolated.as_ref()?.request)
    }

    /// Ends the isolation if it is this request's.
    pub(crate) fn end_isolation_of(&mut self, request: Key<LiveRequest>) {
        self.isolated = self.isolated.take().filter(|isolated| isolated.request != request);
    }

    /// Ends the isolation if the request has ended.
    pub(super) fn forget_ended(&mut self, table: &Table) {
        self.isolated = self.isolated.take().filter(|isolated| table.request(isolated.request).is_some());
    }

    /// Ends the isolation if every live sample has one more token.
    pub(crate) fn settle(&mut self, table: &Table) {
        let Some(Isolated { request, lengths, .. }) = &self.isolated else { return };
        let has_more = |key| {
            let sequence: &Sequence = &table[key];
            sequence.output.len() > lengths.get(sequence.sample as usize).copied().unwrap_or(0)
        };
        if table.request(*request).is_none_or(|live| live.sequences().into_iter().all(has_more)) {
            self.isolated = None;
        }
    }

    /// Notes that the request may have room again.
    pub(crate) fn has_room_again(&mut self) {
        if let Some(isolated) = &mut self.isolated {
            isolated.lacks_room = false;
        }
    }

    pub(super) fn is_isolating(&self) -> bool {
        self.isolated.is_some()
    }

    /// The turns to try, in this order, until one has rows.
    pub(super) fn to_try(&self) -> impl Iterator<Item = Turn> + use<> {
        let turns = match &self.isolated {
            None => [Some(Turn::Everyone), None],
            Some(one) if one.has_next_turn => [Some(Turn::Only(one.request)), Some(Turn::AllBut(one.request))],
            Some(one) => [Some(Turn::AllBut(one.request)), Some(Turn::Only(one.request))],
        };
        turns.into_iter().flatten()
    }

    /// Notes the outcome of a turn: whether it has rows, and the reason for which it admitted no more.
    pub(super) fn end(&mut self, turn: Turn, has_rows: bool, stop: Option<Reason>) {
        self.last = turn;
        let Some(isolated) = &mut self.isolated else { return };
        if let Turn::Only(_) = turn {
            let lacks = matches!(
                stop,
                Some(
                    Reason::Slots
                        | Reason::Adapters
                        | Reason::Blocks
                        | Reason::Watermark
                        | Reason::Growth
                        | Reason::Preempting
                )
            );
            isolated.lacks_room = !has_rows && lacks;
        }
        if has_rows {
            isolated.has_next_turn = matches!(turn, Turn::AllBut(_));
        }
    }

    /// The first in the queue that may have a row in this turn.
    pub(super) fn first_waiting(&self, turn: Turn, table: &Table) -> Option<Key<Sequence>> {
        match turn {
            Turn::Everyone => table.queue().first(),
            Turn::AllBut(_) | Turn::Only(_) => self.first_waiting_of(turn, table, |_| true),
        }
    }

    /// The first in the queue that may have a row in this turn and that `may_be` accepts. It is asked in the order of
    /// the queue, and only once in the turn of one request.
    pub(super) fn first_waiting_of(
        &self,
        turn: Turn,
        table: &Table,
        mut may_be: impl FnMut(Key<Sequence>) -> bool,
    ) -> Option<Key<Sequence>> {
        match turn {
            Turn::Everyone => table.queue().first_of(may_be),
            Turn::AllBut(_) if self.isolated.as_ref().is_some_and(|isolated| isolated.lacks_room) => None,
            Turn::AllBut(one) => table.queue().first_of(|key| table[key].request != one && may_be(key)),
            Turn::Only(one) => {
                let keys = table.request(one)?.sequences().into_iter();
                let queued = keys.filter(|&key| table[key].state().is_queued());
                queued.min_by_key(|&key| table[key].queue_key()).filter(|&key| may_be(key))
            }
        }
    }
}
