//! Holds: the caller keeps a request from running for as long as it wants.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::recorder::Input;
use crate::sequence::{Sequence, State};

use super::{Scheduler, live_sequences};

impl Scheduler {
    /// Keeps a request from running until `release`: it leaves the queue, and what runs of it is preempted.
    ///
    /// Errors: `UnknownRequest`, `AlreadyHeld`.
    pub fn hold(&mut self, client: ClientId, request: RequestId, reason: &str) -> Result<()> {
        let key = self.find(client, request)?;
        let live = &mut self.requests[key];
        if let Some(reason) = &live.hold {
            return Err(Error::AlreadyHeld { request, reason: reason.clone() });
        }
        live.hold = Some(reason.to_owned());
        self.record(|| Input::Hold { client, request, reason: reason.to_owned() });
        self.end_isolation_of(key);
        for key in live_sequences(&self.requests[key]) {
            self.set_aside(key);
        }
        Ok(())
    }

    /// Puts a held request back to where it was in the queue.
    ///
    /// Errors: `UnknownRequest`, `NotHeld`.
    pub fn release(&mut self, client: ClientId, request: RequestId) -> Result<()> {
        let key = self.find(client, request)?;
        if self.requests[key].hold.take().is_none() {
            return Err(Error::NotHeld { request });
        }
        self.record(|| Input::Release { client, request });
        for key in live_sequences(&self.requests[key]) {
            self.num_held -= 1;
            let state = if self.sequences[key].is_on_host() { State::Swapped } else { State::Waiting };
            self.enqueue(key, state);
        }
        Ok(())
    }

    fn set_aside(&mut self, key: Key<Sequence>) {
        if self.sequences[key].slot().is_some() {
            self.running.retain(|&running| running != key);
            self.preempt(key);
        }
        match self.sequences[key].state {
            State::Waiting | State::Preempted | State::Swapped => self.dequeue(key),
            State::Paused => self.num_paused -= 1,
            State::Loading | State::Held | State::Running(_) => {}
        }
        self.sequences[key].state = State::Held;
        self.num_held += 1;
    }
}
