//! Recounts of the references to blocks, for `Scheduler::audit`.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BlockId, HostBlockId};
use crate::kv::Kv;
use crate::kv::cache::Found;
use crate::table::Table;
use crate::table::sequence::{Chain, Sequence, State};

type Audit = Result<(), String>;

/// References to blocks, recounted.
#[derive(Default)]
struct References {
    device: BTreeMap<BlockId, u32>,
    host: BTreeMap<HostBlockId, u32>,
}

impl References {
    fn add(&mut self, block: BlockId) {
        *self.device.entry(block).or_default() += 1;
    }

    fn add_host(&mut self, block: HostBlockId) {
        *self.host.entry(block).or_default() += 1;
    }
}

impl Kv {
    pub(super) fn audit_references(&self, table: &Table) -> Audit {
        let mut references = References::default();
        for (_, sequence) in table.sequences() {
            self.audit_chains(sequence)?;
            for chain in &sequence.chains {
                chain.blocks.iter().for_each(|&block| references.add(block));
                chain.host_blocks.iter().for_each(|&block| references.add_host(block));
            }
        }
        for place in self.loads.places() {
            match place {
                Found::Device(block) => references.add(block),
                Found::Host(host) => references.add_host(host),
            }
        }
        self.audit_counts(&references)
    }

    fn audit_chains(&self, sequence: &Sequence) -> Audit {
        let end = self.layout.blocks_for(sequence.num_computed);
        let placed = sequence.chains.iter().map(Chain::end).min().map(|end| end * self.layout.block_size);
        ensure(Some(sequence.num_placed) == placed, || format!("{placed:?} tokens have a place, not as noted"))?;
        for (chain, &group) in sequence.chains.iter().zip(&self.layout.groups) {
            let first = if end == 0 { 0 } else { group.first_block(sequence.lowest()) };
            let needed = (end - first) as usize;
            let (held, on_host) = (chain.blocks.len(), chain.host_blocks.len());
            let holds = match sequence.state() {
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
        }
        Ok(())
    }

    fn audit_counts(&self, references: &References) -> Audit {
        for block in (0..self.cache.blocks.host.num_blocks()).map(HostBlockId) {
            let expected = references.host.get(&block).copied().unwrap_or(0);
            let counted = self.cache.blocks.references_host(block);
            ensure(counted == expected, || format!("host block {block} counts {counted} references of {expected}"))?;
        }
        let free: Vec<_> = self.cache.free_blocks().collect();
        ensure(free.len() == self.cache.num_free() as usize, || "the free list has another length".to_owned())?;
        let distinct: BTreeSet<_> = free.iter().copied().collect();
        ensure(distinct.len() == free.len(), || "a block is free twice".to_owned())?;
        for block in (0..self.cache.num_blocks()).map(BlockId) {
            let expected = references.device.get(&block).copied().unwrap_or(0)
                + self.cache.pinned_references(block)
                + self.cache.saving_references(block);
            let counted = self.cache.references(block);
            ensure(counted == expected, || format!("block {block} counts {counted} references of {expected}"))?;
            ensure(distinct.contains(&block) == (counted == 0), || format!("block {block} is in two places or none"))?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Audit {
    if holds { Ok(()) } else { Err(problem()) }
}
