//! Deadlines: the scheduler's time, and the end of requests at their deadline.

use crate::error::{Error, Result};
use crate::recorder::Input;
use crate::request::Finish;

use super::{Scheduler, ranking};

impl Scheduler {
    /// Ends the requests at their deadline, as `schedule` does, for times in which no step can be planned.
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
}
