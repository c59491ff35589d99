//! The ways into and out of waiting for something else than a step: holds by the caller, and deadlines.

use crate::arena::Key;
use crate::error::{Error, Result};
use crate::ids::{ClientId, RequestId};
use crate::record::Input;
use crate::request::Finish;
use crate::sequence::{Sequence, State};

use super::{Scheduler, live_sequences, ranking};

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
            let state = if self.sequences[key].host_blocks.is_empty() { State::Waiting } else { State::Swapped };
            self.enqueue(key, state);
        }
        Ok(())
    }

    /// Ends the requests whose deadline has come, as `schedule` does: for a time in which nothing can be planned.
    ///
    /// Errors: `Time`.
    pub fn expire(&mut self, now: f64) -> Result<()> {
        self.set_time(now)?;
        self.record(|| Input::Expire { now });
        self.end_expired();
        Ok(())
    }

    pub(super) fn set_time(&mut self, now: f64) -> Result<()> {
        if !now.is_finite() || now < self.now {
            return Err(Error::Time { now, previous: self.now });
        }
        self.now = now;
        Ok(())
    }

    pub(super) fn end_expired(&mut self) {
        let now = ranking::ordered(self.now);
        if self.deadlines.first_key_value().is_none_or(|((deadline, _), _)| *deadline > now) {
            return;
        }
        self.outbox.begin_round();
        while let Some((&(deadline, serial), &key)) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, serial));
            self.counters.num_expired += 1;
            for sample in 0..self.requests[key].samples.len() as u32 {
                self.finish_sample(key, sample, Finish::Deadline);
            }
        }
        self.forget_ended();
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
