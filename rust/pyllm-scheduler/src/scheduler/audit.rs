//! Checks of the scheduler's state against recounts; the property tests run them after every call.

use std::collections::{BTreeMap, BTreeSet};

use crate::beam_search::BeamSearch;
use crate::ids::{BlockId, HostBlockId};
use crate::kv_cache::Found;
use crate::sequence::{Beam, Chain, Sample, State};

use super::Scheduler;

type Audit = Result<(), String>;

impl Scheduler {
    /// Recounts all numbers that are kept in two places. Takes time linear in the state; never needed in operation.
    ///
    /// Errors: the first mismatch, which is a bug of this crate.
    pub fn audit(&self) -> Audit {
        self.audit_blocks()?;
        self.audit_slots()?;
        self.audit_queues()?;
        self.audit_requests()?;
        self.audit_steps()?;
        self.queue.audit(self.requests.len())?;
        self.outbox.audit(self.requests.len())?;
        self.cache.audit()
    }

    fn audit_blocks(&self) -> Audit {
        let mut references = BTreeMap::<BlockId, u32>::new();
        let mut host_references = BTreeMap::<HostBlockId, u32>::new();
        for (_, sequence) in self.sequences.iter() {
            let end = self.config.blocks_for(sequence.num_computed);
            let placed = sequence.chains.iter().map(Chain::end).min().map(|end| end * self.config.block_size);
            ensure(Some(sequence.num_placed) == placed, || format!("{placed:?} tokens have a place, not as noted"))?;
            for (chain, &group) in sequence.chains.iter().zip(&self.layout.groups) {
                let first = if end == 0 { 0 } else { group.first_block(sequence.lowest()) };
                let needed = (end - first) as usize;
                let (held, on_host) = (chain.blocks.len(), chain.host_blocks.len());
                let holds = match sequence.state {
                    State::Running(_) => chain.first <= first && chain.end() >= end && on_host == 0,
                    State::Swapped | State::Held | State::Paused => {
                        held == 0 && chain.host_first <= first && chain.host_first as usize + on_host >= end as usize
                    }
                    State::Waiting | State::Preempted | State::Loading => held + on_host + needed == 0,
                };
                ensure(holds, || {
                    let (held_first, host_first) = (chain.first, chain.host_first);
                    format!("{needed} blocks from {first} on are {held} from {held_first}, {on_host} from {host_first}")
                })?;
                for &block in &chain.blocks {
                    *references.entry(block).or_default() += 1;
                }
                for &block in &chain.host_blocks {
                    *host_references.entry(block).or_default() += 1;
                }
            }
        }
        for loading in self.loads.values() {
            for &block in loading.chains.iter().flat_map(|chain| &chain.blocks) {
                *references.entry(block).or_default() += 1;
            }
            for &found in loading.before.iter().flat_map(|chain| &chain.blocks) {
                match found {
                    Found::Device(block) => *references.entry(block).or_default() += 1,
                    Found::Host(host) => *host_references.entry(host).or_default() += 1,
                }
            }
        }
        for block in (0..self.config.num_host_blocks).map(HostBlockId) {
            let expected = host_references.get(&block).copied().unwrap_or(0);
            let counted = self.cache.references_host(block);
            ensure(counted == expected, || format!("host block {block} counts {counted} references of {expected}"))?;
        }
        let free: Vec<_> = self.cache.free_blocks().collect();
        ensure(free.len() == self.cache.num_free() as usize, || "the free list has another length".to_owned())?;
        let distinct: BTreeSet<_> = free.iter().copied().collect();
        ensure(distinct.len() == free.len(), || "a block is free twice".to_owned())?;
        for block in (0..self.config.num_blocks).map(BlockId) {
            let expected = references.get(&block).copied().unwrap_or(0)
                + self.cache.pinned_references(block)
                + self.cache.saving_references(block);
            let counted = self.cache.references(block);
            ensure(counted == expected, || format!("block {block} counts {counted} references of {expected}"))?;
            ensure(distinct.contains(&block) == (counted == 0), || format!("block {block} is in two places or none"))?;
        }
        Ok(())
    }

    fn audit_slots(&self) -> Audit {
        let taken = self.sequences.iter().filter_map(|(_, sequence)| sequence.slot());
        let mut slots: Vec<_> = taken.chain(self.free_slots.iter().copied()).map(|slot| slot.0).collect();
        slots.sort_unstable();
        ensure(slots.into_iter().eq(0..self.config.max_num_seqs), || "a slot is in two places or none".to_owned())?;
        let destinations: BTreeSet<_> = self.slot_copies.iter().map(|&(_, destination)| destination).collect();
        ensure(destinations.len() == self.slot_copies.len(), || "two copies go to one slot".to_owned())?;
        let freed = self.free_slots.iter().find(|slot| destinations.contains(slot));
        ensure(freed.is_none(), || "a copy goes to a free slot".to_owned())
    }

    fn audit_queues(&self) -> Audit {
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
        self.audit_beams()?;
        ensure(num_live == self.sequences.len(), || "a sequence belongs to no request".to_owned())?;
        ensure(self.request_keys.len() == self.requests.len(), || "a name leads nowhere".to_owned())
    }

    fn audit_beams(&self) -> Audit {
        for (_, live) in self.requests.iter() {
            let beams = live.search.iter().flat_map(BeamSearch::live);
            let mut beams: Vec<_> = beams.map(|(sample, tokens, is_known)| (sample, is_known, tokens)).collect();
            beams.sort_unstable();
            let sequences = super::live_sequences(live).into_iter().map(|key| &self.sequences[key]);
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

    fn audit_steps(&self) -> Audit {
        ensure(self.steps.iter().is_sorted_by_key(|step| step.id), || "steps are out of order".to_owned())?;
        for (key, sequence) in self.sequences.iter() {
            let rows = self.steps.iter().flat_map(|step| &step.rows);
            let sampled = rows.filter(|row| row.sequence == key && row.num_samples > 0).count();
            ensure(sampled == sequence.num_in_flight as usize, || {
                format!("{sampled} tokens are in flight, not {}", sequence.num_in_flight)
            })?;
            let mut behind = self.steps.iter().flat_map(|step| &step.rows).filter(|row| row.sequence == key);
            let is_behind = behind.any(|row| row.num_samples > 0) && behind.next().is_some();
            let is_pipelined = self.config.pipeline_parallel_size > 1;
            ensure(!is_pipelined || !is_behind, || "a row is planned behind one whose token is not known".to_owned())?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Audit {
    if holds { Ok(()) } else { Err(problem()) }
}
