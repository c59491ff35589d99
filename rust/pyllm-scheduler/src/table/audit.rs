//! Recounts of the table, for `Scheduler::audit`.

use crate::arena::Key;
use crate::table::Table;
use crate::table::beam_search::BeamSearch;
use crate::table::sequence::{Beam, Sample, Sequence, State};

type Audit = Result<(), String>;

impl Table {
    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Audit {
        self.slots.audit(self.sequences.iter().filter_map(|(_, sequence)| sequence.slot()))?;
        let running = self.sequences.iter().filter(|(_, sequence)| sequence.slot().is_some());
        let running = running.map(|(_, sequence)| self.requests[sequence.request].request.adapter_number);
        self.adapter_slots.audit(running)?;
        self.audit_places()?;
        self.audit_requests()?;
        self.audit_beams()?;
        self.queue.audit(self.requests.len())
    }

    fn audit_places(&self) -> Audit {
        for &key in &self.running {
            let is_running = self.sequences.get(key).is_some_and(|sequence| sequence.slot().is_some());
            ensure(is_running, || "what does not run is among the running".to_owned())?;
        }
        let is_sorted = self.running.is_sorted_by_key(|&key| self.sequences[key].queue_key);
        ensure(is_sorted || self.running_order_is_stale(), || "what runs is not in the policy's order".to_owned())?;
        for (lane, queue_key, key) in self.queue.iter() {
            let sequence = self.sequences.get(key).filter(|sequence| sequence.state.is_queued());
            let is_there = sequence.is_some_and(|sequence| {
                sequence.queue_key == *queue_key && self.requests[sequence.request].lane == lane
            });
            ensure(is_there, || "what does not wait is in the queue".to_owned())?;
        }
        let count = |state: fn(State) -> bool| self.sequences.iter().filter(|(_, one)| state(one.state)).count();
        let counted = (
            count(|state| matches!(state, State::Running(_))),
            count(State::is_queued),
            count(|state| state == State::Swapped),
            count(|state| matches!(state, State::Held)),
            count(|state| matches!(state, State::Paused)),
        );
        let (num_waiting, num_swapped_out) = (self.queue.len(), self.num_swapped_out);
        let expected = (self.running.len(), num_waiting, num_swapped_out, self.num_held, self.num_paused);
        ensure(counted == expected, || {
            format!("{counted:?} sequences run, wait, do so on the host, are held and pause, not {expected:?}")
        })
    }

    fn audit_requests(&self) -> Audit {
        let mut num_live = 0;
        for (key, live) in self.requests.iter() {
            let name = (live.request.client, live.request.id);
            ensure(self.request_keys.get(&name) == Some(&key), || format!("{name:?} is not found by its name"))?;
            let unfinished = live.samples.iter().filter(|sample| !matches!(sample, Sample::Finished)).count();
            ensure(unfinished == live.num_unfinished as usize && unfinished > 0, || {
                format!("{name:?} has {unfinished} samples of {}", live.num_unfinished)
            })?;
            for (index, sample) in live.samples.iter().enumerate() {
                let Sample::Live(sequence) = *sample else { continue };
                num_live += 1;
                let sequence = self.sequences.get(sequence);
                let belongs = sequence.is_some_and(|one| one.request == key && one.sample as usize == index);
                ensure(belongs, || format!("sample {index} of {name:?} has no sequence of its own"))?;
                let held = sequence.is_some_and(|one| one.state == State::Held);
                ensure(held != live.holders.is_empty(), || format!("sample {index} of {name:?} is not held with it"))?;
            }
        }
        ensure(num_live == self.sequences.len(), || "a sequence belongs to no request".to_owned())?;
        ensure(self.request_keys.len() == self.requests.len(), || "a name leads nowhere".to_owned())
    }

    fn audit_beams(&self) -> Audit {
        for (_, live) in self.requests.iter() {
            let beams = live.search.iter().flat_map(BeamSearch::live);
            let mut beams: Vec<_> = beams.map(|(sample, tokens, is_known)| (sample, is_known, tokens)).collect();
            beams.sort_unstable();
            let sequences = live.sequences().into_iter().map(|key: Key<Sequence>| &self.sequences[key]);
            let sequences: Vec<_> = sequences
                .filter(|one| one.beam != Beam::None)
                .map(|one| (one.sample, one.beam == Beam::Waiting, &one.output[..]))
                .collect();
            ensure(beams == sequences, || format!("the beams {beams:?} are the sequences {sequences:?}"))?;
        }
        let mut sequences = self.sequences.iter().map(|(_, one)| one);
        let paused = sequences.find(|one| one.state == State::Paused && one.beam != Beam::Waiting);
        ensure(paused.is_none(), || "a sequence pauses that does not wait for its siblings".to_owned())
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Audit {
    if holds { Ok(()) } else { Err(problem()) }
}
