//! The slots of the device for adapters (LoRA): which adapter is in each, and how many running sequences use it. A
//! sequence runs only while its adapter has a slot. Knows no sequences and no weights.

/// One slot of the device.
#[derive(Clone, Copy, Debug, Default)]
struct AdapterSlot {
    adapter: u32, // 0: none yet
    num_running: u32,
    /// Number of uses when a request last began to use it, or its last sequence left.
    last_used: u64,
}

pub(crate) struct AdapterSlots {
    slots: Vec<AdapterSlot>,
    num_uses: u64,
    loads: Vec<(u32, u32)>, // (slot, adapter), for the next plan
    /// The adapters of all slots at the last decision, if each had running sequences; else empty.
    full: Vec<u32>,
    /// The adapter that was given no further requests at the last decision.
    draining: Option<u32>,
}

impl AdapterSlots {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            slots: vec![AdapterSlot::default(); capacity as usize],
            num_uses: 0,
            loads: Vec::new(),
            full: Vec::new(),
            draining: None,
        }
    }

    /// The slot of an adapter.
    pub(crate) fn find(&self, adapter: u32) -> Option<u32> {
        self.slots.iter().position(|slot| slot.adapter == adapter).map(|slot| slot as u32)
    }

    /// Whether a sequence with this adapter may run: it has a slot, or another one can leave its slot.
    pub(crate) fn has_room(&self, adapter: u32) -> bool {
        self.slots.iter().any(|slot| slot.adapter == adapter || slot.num_running == 0)
    }

    /// The adapter to be given no further requests, so that its slot becomes free: the least recently used one.
    pub(crate) fn least_recent(&self) -> Option<u32> {
        self.slots.iter().min_by_key(|slot| slot.last_used).map(|slot| slot.adapter)
    }

    /// A sequence with this adapter, which `has_room`, runs from now on. `is_first`: no other of its request runs. The
    /// adapter is loaded if it has no slot: into one that was never used, else into the least recently used one.
    pub(crate) fn enter(&mut self, adapter: u32, is_first: bool) {
        let index = self.find(adapter).unwrap_or_else(|| self.load(adapter));
        let slot = &mut self.slots[index as usize];
        slot.num_running += 1;
        if is_first {
            self.touch(index);
        }
    }

    /// A sequence with this adapter runs no longer.
    pub(crate) fn leave(&mut self, adapter: u32) {
        let index = self.find(adapter).expect("the adapter of a running sequence has a slot");
        self.slots[index as usize].num_running -= 1;
        if self.slots[index as usize].num_running == 0 {
            self.touch(index);
        }
    }

    fn load(&mut self, adapter: u32) -> u32 {
        let unused = (0..).zip(&self.slots).filter(|(_, slot)| slot.num_running == 0);
        let (index, _) = unused.min_by_key(|(_, slot)| slot.last_used).expect("the caller has looked");
        self.slots[index as usize].adapter = adapter;
        self.loads.push((index, adapter));
        index
    }

    fn touch(&mut self, index: u32) {
        self.num_uses += 1;
        self.slots[index as usize].last_used = self.num_uses;
    }

    /// Takes the pending loads, each a slot and an adapter.
    pub(crate) fn take_loads(&mut self) -> impl Iterator<Item = (u32, u32)> {
        self.loads.drain(..)
    }

    /// Empties all slots after the loss of the device.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.slots.len() as u32);
    }

    /// Remembers the slots for `lacked` and `drained`. `any_lacks`: a sequence waits for a slot.
    pub(crate) fn note_decision(&mut self, any_lacks: bool) {
        self.full.clear();
        self.draining = None;
        if self.slots.iter().all(|slot| slot.num_running > 0) {
            self.full.extend(self.slots.iter().map(|slot| slot.adapter));
            self.draining = if any_lacks { self.least_recent() } else { None };
        }
    }

    /// Whether an adapter had no slot at the last decision, and could have none.
    pub(crate) fn lacked(&self, adapter: u32) -> bool {
        !self.full.is_empty() && !self.full.contains(&adapter)
    }

    /// Whether an adapter was given no further requests at the last decision.
    pub(crate) fn drained(&self, adapter: u32) -> bool {
        self.draining == Some(adapter)
    }

    /// The adapters that have a slot.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().map(|slot| slot.adapter).filter(|&adapter| adapter > 0)
    }

    /// See `Scheduler::audit`. `running` are the adapters of all running sequences.
    pub(crate) fn audit(&self, running: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut counts = vec![0; self.slots.len()];
        for adapter in running.filter(|&adapter| adapter > 0) {
            let slot = self.find(adapter).ok_or_else(|| format!("adapter {adapter} is used and has no slot"))?;
            counts[slot as usize] += 1;
        }
        if !self.slots.iter().map(|slot| slot.num_running).eq(counts.iter().copied()) {
            return Err(format!("{counts:?} running sequences use the adapters of {:?}", self.slots));
        }
        let mut adapters: Vec<_> = self.adapters().collect();
        adapters.sort_unstable();
        if adapters.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("an adapter has two slots".to_owned());
        }
        let is_there = |&(slot, adapter): &(u32, u32)| self.slots[slot as usize].adapter == adapter;
        if self.loads.iter().all(is_there) { Ok(()) } else { Err("a load is for another adapter's slot".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_adapter_without_running_sequences_leaves_its_slot() {
        let mut slots = AdapterSlots::new(2);
        slots.enter(7, true);
        slots.enter(8, true);
        assert!(slots.has_room(7) && !slots.has_room(9));
        slots.leave(8);
        slots.leave(7);
        slots.enter(9, true);
        assert_eq!(slots.take_loads().collect::<Vec<_>>(), [(0, 7), (1, 8), (1, 9)]);
        assert_eq!((slots.find(7), slots.find(8), slots.find(9)), (Some(0), None, Some(1)));
        assert_eq!(slots.audit([9].into_iter()), Ok(()));
    }

    #[test]
    fn further_sequences_of_a_running_request_are_no_new_use() {
        let mut slots = AdapterSlots::new(2);
        slots.enter(7, true);
        slots.enter(8, true);
        slots.enter(7, false);
        assert_eq!(slots.least_recent(), Some(7));
        slots.enter(7, true);
        slots.leave(7);
        assert_eq!(slots.least_recent(), Some(8));
    }

    #[test]
    fn what_was_lacked_is_as_of_the_last_decision() {
        let mut slots = AdapterSlots::new(1);
        slots.enter(7, true);
        slots.note_decision(true);
        slots.leave(7);
        assert!(slots.lacked(8) && !slots.lacked(7) && slots.drained(7));
        slots.note_decision(false);
        assert!(!slots.lacked(8) && !slots.drained(7));
    }
}
