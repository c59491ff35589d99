//! When requests begin: how long they waited for their first step, and how long it took from there to their first
//! output. Only what clients are told comes of it, no decision.

use crate::arena::Key;
use crate::output::start_times::StartTime;
use crate::sequence::LiveRequest;

use super::Scheduler;

impl Scheduler {
    /// A step computes some of this request, for the first time or again.
    pub(super) fn note_scheduled(&mut self, key: Key<LiveRequest>) {
        self.requests[key].scheduled_at.get_or_insert(self.now);
    }

    /// A step that was planned at `planned_at` is being committed. It ran from then or from the end of the one before,
    /// for as long as its caller measured.
    pub(super) fn note_committed(&mut self, planned_at: f64, seconds: f64) {
        let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
        self.committed_at = self.now.max(self.committed_at.max(planned_at) + seconds);
    }

    /// The row that was pushed last is output of this request; if it is the first, its times go with it. One that is
    /// resumed has told them, with its first core.
    pub(super) fn tell_start(&mut self, key: Key<LiveRequest>) {
        let live = &mut self.requests[key];
        if std::mem::replace(&mut live.has_output, true) {
            return;
        }
        let Some(scheduled_at) = live.scheduled_at else { return };
        let queue = (scheduled_at - live.request.arrival).max(0.0) as f32;
        let prefill = (self.committed_at - scheduled_at).max(0.0) as f32;
        self.outbox.tell_start(live.client, StartTime { queue, prefill });
    }
}
