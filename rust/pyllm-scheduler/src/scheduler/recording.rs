//! Recording a scheduler's inputs while it runs.

use crate::error::{Error, Result};
use crate::recorder::Recorder;

use super::Scheduler;

impl Scheduler {
    /// Keeps every input from now on, for `take_recording`.
    ///
    /// Errors: `NotNew` if something happened before, which the recording would lack.
    pub fn start_recording(&mut self) -> Result<()> {
        if self.num_inputs > 0 {
            return Err(Error::NotNew { call: "start_recording" });
        }
        self.recorder = Some(Recorder::new(&self.config));
        Ok(())
    }

    /// What was recorded since the last call; the parts of a recording are read in one piece. Empty without recording.
    pub fn take_recording(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map_or(Vec::new(), Recorder::take)
    }

    /// The hash of all decisions since recording began.
    pub fn decisions_hash(&self) -> Option<u64> {
        self.recorder.as_ref().map(Recorder::hash)
    }
}
