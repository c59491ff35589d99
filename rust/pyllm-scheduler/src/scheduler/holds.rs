//! Holds: callers keep a request from running for as long as they want. Each holder has a name and releases its own
//! hold; the request runs after the last release.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::recorder::Input;
use crate::sequence::{Sequence, State};

use super::{Scheduler, live_sequences};

impl Scheduler {
    /// Keeps a request from running until the same holder's `release`: it leaves the queue, and its running sequences
    /// are preempted.
    ///
    /// Errors: `UnknownRequest`, `AlreadyHeld` by this holder.
    pub fn hold(&mut self, client: ClientId, request: RequestId, holder: &str) -> Result<()> {
        let key = self.find(client, request)?;
        let holders = &mut self.requests[key].holders;
        if holders.iter().any(|one| one == holder) {
            return Err(Error::AlreadyHeld { request, holder: holder.to_owned() });
        }
        let is_first = holders.is_empty();
        holders.push(holder.to_owned());
        self.record(|| Input::Hold { client, request, holder: holder.to_owned() });
        self.end_isolation_of(key);
        if is_first {
            for key in live_sequences(&self.requests[key]) {
                self.set_aside(key);
            }
        }
        Ok(())
    }

    /// Ends a holder's hold. After the last one the request returns to its place in the queue.
    ///
    /// Errors: `UnknownRequest`, `NotHeld` by this holder.
    pub fn release(&mut self, client: ClientId, request: RequestId, holder: &str) -> Result<()> {
        let key = self.find(client, request)?;
        let holders = &mut self.requests[key].holders;
        let Some(place) = holders.iter().position(|one| one == holder) else {
            return Err(Error::NotHeld { request, holder: holder.to_owned() });
        };
        holders.remove(place);
        let is_free = holders.is_empty();
        self.record(|| Input::Release { client, request, holder: holder.to_owned() });
        if !is_free {
            return Ok(());
        }
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
