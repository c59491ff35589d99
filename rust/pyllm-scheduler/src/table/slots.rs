//! The slots of running sequences in the worker's batch, and pending copies of their states. Knows no sequences.

use std::collections::BTreeSet;

use crate::ids::Slot;

pub(crate) struct Slots {
    capacity: u32,
    free: Vec<Slot>,           // the next to be taken last
    copies: Vec<(Slot, Slot)>, // (source, destination), for the next plan
}

impl Slots {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity, free: (0..capacity).rev().map(Slot).collect(), copies: Vec::new() }
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Frees a slot; copies to it are dropped.
    pub(crate) fn free(&mut self, slot: Slot) {
        self.copies.retain(|&(_, destination)| destination != slot);
        self.free.push(slot);
    }

    /// Copies the state of a slot before the next step.
    pub(crate) fn copy(&mut self, source: Slot, destination: Slot) {
        // The source itself may be the destination of a pending copy: copy from that one's source.
        let earlier = self.copies.iter().find(|copy| copy.1 == source);
        self.copies.push((earlier.map_or(source, |copy| copy.0), destination));
    }

    /// Takes the pending copies, each a source and a destination.
    pub(crate) fn take_copies(&mut self) -> impl Iterator<Item = (Slot, Slot)> {
        self.copies.drain(..)
    }

    /// Frees all slots after the loss of the device.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// See `Scheduler::audit`. `taken` are the slots of all running sequences.
    pub(crate) fn audit(&self, taken: impl Iterator<Item = Slot>) -> Result<(), String> {
        let mut slots: Vec<_> = taken.chain(self.free.iter().copied()).map(|slot| slot.0).collect();
        slots.sort_unstable();
        if !slots.into_iter().eq(0..self.capacity) {
            return Err("a slot is in two places or none".to_owned());
        }
        let destinations: BTreeSet<_> = self.copies.iter().map(|&(_, destination)| destination).collect();
        if destinations.len() != self.copies.len() {
            return Err("two copies go to one slot".to_owned());
        }
        match self.free.iter().find(|slot| destinations.contains(slot)) {
            Some(_) => Err("a copy goes to a free slot".to_owned()),
            None => Ok(()),
        }
    }
}
