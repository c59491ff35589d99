//! Ends of samples and requests: by their last token, by the client, or at the deadline.

use crate::arena::Key;
use crate::commit::Commit;
use crate::ids::ClientId;
use crate::output::deltas::Delta;
use crate::output::start_times::StartTime;
use crate::request::Finish;
use crate::table::sequence::{LiveRequest, Sample};

impl Commit<'_> {
    /// See `Scheduler::abort`.
    pub(crate) fn abort(&mut self, key: Key<LiveRequest>, sample: Option<u32>) -> bool {
        let live = &self.table[key];
        let all = 0..live.samples.len() as u32;
        let samples = match sample {
            None => all,
            Some(sample) if live.search.is_some() && all.contains(&sample) => all,
            Some(sample) => sample..sample.saturating_add(1),
        };
        self.outbox.begin_round();
        let mut found = false;
        for sample in samples {
            found |= self.finish_sample(key, sample, Finish::Abort);
        }
        self.table.forget_ended();
        found
    }

    /// Ends all requests of a disconnected client, and drops its deltas.
    pub(crate) fn drop_client(&mut self, client: ClientId) {
        let owned = self.table.requests().filter(|(_, live)| live.request.client == client);
        for key in owned.map(|(key, _)| key).collect::<Vec<_>>() {
            for sequence in self.table[key].sequences() {
                let (sequence_of, live) = self.table.pair_mut(sequence);
                live.note_ended(sequence_of);
                self.kv.remove(sequence, self.table);
            }
            self.remove_request(key, Finish::Abort);
        }
        self.table.forget_ended();
        self.outbox.remove(client);
    }

    /// Ends the requests at their deadline.
    pub(crate) fn end_expired(&mut self) {
        let mut any_ended = false;
        while let Some(key) = self.table.take_expired() {
            if !any_ended {
                self.outbox.begin_round();
            }
            any_ended = true;
            self.observer.expired();
            for sample in 0..self.table[key].samples.len() as u32 {
                self.finish_sample(key, sample, Finish::Deadline);
            }
        }
        if any_ended {
            self.table.forget_ended();
        }
    }

    /// Ends a sample with a final delta. False: it has ended before. The caller removes it from the running order.
    fn finish_sample(&mut self, key: Key<LiveRequest>, sample: u32, finish: Finish) -> bool {
        // The samples before this one may have been the last.
        let Some(live) = self.table.request(key) else { return false };
        let mut offset = 0;
        let mut cached_tokens = 0;
        match live.samples.get(sample as usize) {
            None | Some(Sample::Finished) => return false,
            Some(Sample::Unforked) => {}
            Some(Sample::Live(sequence)) => {
                let sequence = &self.table[*sequence];
                // Beams send no deltas.
                offset = if live.search.is_some() { 0 } else { sequence.output.len() };
                cached_tokens = sequence.cached_tokens.unwrap_or(0);
            }
        }
        let delta = Delta {
            request: live.request.id,
            sample,
            offset: offset as i32,
            tokens: &[],
            logprobs: None,
            embedding: &[],
            finish,
            cached_tokens,
        };
        self.outbox.push(live.client, &delta);
        self.observer.sample_ended(live, sample, finish, offset);
        self.hand_over(key, sample);
        self.end_sample(key, sample, finish);
        true
    }

    /// If other samples wait for this sequence to compute their prompt, the next of them takes it over.
    fn hand_over(&mut self, key: Key<LiveRequest>, sample: u32) {
        let live = &mut self.table[key];
        let Sample::Live(sequence) = live.samples[sample as usize] else { return };
        let mut later = sample as usize + 1..live.samples.len();
        if let Some(heir) = later.find(|&later| matches!(live.samples[later], Sample::Unforked)) {
            live.samples[heir] = Sample::Live(sequence);
            live.samples[sample as usize] = Sample::Unforked;
            self.table[sequence].sample = heir as u32;
        }
    }

    /// Removes a sample's sequence, and with the last sample the request. The caller removes it from the running order.
    pub(super) fn end_sample(&mut self, key: Key<LiveRequest>, sample: u32, finish: Finish) {
        let live = &mut self.table[key];
        let ended = std::mem::replace(&mut live.samples[sample as usize], Sample::Finished);
        live.num_unfinished -= 1;
        let is_last = live.num_unfinished == 0;
        if let Sample::Live(key) = ended {
            let (sequence, live) = self.table.pair_mut(key);
            live.note_ended(sequence);
            self.kv.remove(key, self.table);
        }
        if is_last {
            self.remove_request(key, finish);
        }
    }

    /// Removes a request without sequences; its last sample ended with `finish`.
    pub(super) fn remove_request(&mut self, key: Key<LiveRequest>, finish: Finish) {
        if let Some(live) = self.table.remove_request(key) {
            self.outbox.close(live.client);
            self.observer.request_ended(live, self.table.now(), finish);
        }
    }

    /// Adds start times to the last pushed row if it is the first output of this request. A resumed request has sent
    /// them before, from its first core.
    pub(super) fn tell_start(&mut self, key: Key<LiveRequest>) {
        let live = &mut self.table[key];
        if std::mem::replace(&mut live.has_output, true) {
            return;
        }
        let Some(scheduled_at) = live.scheduled_at else { return };
        let queue = (scheduled_at - live.request.arrival).max(0.0) as f32;
        let prefill = (self.observer.committed_at() - scheduled_at).max(0.0) as f32;
        self.outbox.tell_start(live.client, StartTime { queue, prefill });
    }
}
