//! Pins of states: each keeps, on the device, the checkpoint at the end of its prefix, or the longest one within while
//! that is not there. Knows no reference counts.

use std::collections::BTreeMap;

use crate::block_hash::GroupHash;
use crate::error::Error;
use crate::ids::StateId;
use crate::kv::cache::prefix::Name;

pub(crate) struct StatePins {
    quota: u32,
    by_name: BTreeMap<u64, StatePin>,
}

struct StatePin {
    keys: Vec<GroupHash>,         // of the checkpoints after each block of the prefix
    held: Option<(u32, StateId)>, // with the index of its block
}

impl StatePins {
    /// Half of the states at most, so that two are left for a sequence that runs.
    pub(crate) fn new(num_states: u32) -> Self {
        Self { quota: (num_states / 2).min(num_states.saturating_sub(2)), by_name: BTreeMap::new() }
    }

    /// Errors: `PinnedStates` if there are as many pins as may keep a state.
    pub(crate) fn check(&self) -> crate::error::Result<()> {
        let num_pins = self.by_name.len() as u32;
        if num_pins >= self.quota {
            return Err(Error::PinnedStates { num_pins, quota: self.quota });
        }
        Ok(())
    }

    /// Adds a pin, and the checkpoint of its prefix that it holds.
    pub(crate) fn pin(&mut self, name: u64, keys: Vec<GroupHash>, held: Option<(u32, StateId)>) {
        self.by_name.insert(name, StatePin { keys, held });
    }

    /// Removes a pin. Returns the state to free.
    pub(crate) fn unpin(&mut self, name: u64) -> Option<StateId> {
        self.by_name.remove(&name)?.held.map(|(_, state)| state)
    }

    /// Lets the pins whose prefix has this checkpoint hold it, in place of a shorter one. Calls `changed` for each with
    /// the state that it held before.
    pub(crate) fn hold(&mut self, state: StateId, name: Name, mut changed: impl FnMut(Option<StateId>)) {
        for pin in self.by_name.values_mut() {
            let is_longer = pin.held.is_none_or(|(index, _)| index < name.index);
            if is_longer && pin.keys.get(name.index as usize) == Some(&name.key) {
                changed(pin.held.replace((name.index, state)).map(|(_, before)| before));
            }
        }
    }

    /// Releases all states, but keeps the pins. Returns the states.
    pub(crate) fn release(&mut self) -> Vec<StateId> {
        self.by_name.values_mut().filter_map(|pin| pin.held.take()).map(|(_, state)| state).collect()
    }

    /// The end in blocks of the longest pinned prefix that begins a sequence, of which `hash_of` has the keys of the
    /// first `most` blocks; 0 if there is none.
    pub(crate) fn longest_end(&self, most: u32, key_of: impl Fn(u32) -> GroupHash) -> u32 {
        let ends = self.by_name.values().filter_map(|pin| {
            let last = pin.keys.len() as u32 - 1;
            (last < most && key_of(last) == pin.keys[last as usize]).then_some(last + 1)
        });
        ends.max().unwrap_or(0)
    }

    /// See `Scheduler::audit`. `name` is that of a state of the device.
    pub(crate) fn audit(&self, name: impl Fn(StateId) -> Option<Name>) -> Result<(), String> {
        let held = self.by_name.values().filter_map(|pin| Some((pin, pin.held?)));
        for (pin, (index, state)) in held {
            if name(state).map(|name| name.key) != Some(pin.keys[index as usize]) {
                return Err(format!("state {} is pinned, and has other contents", state.0));
            }
        }
        Ok(())
    }

    /// The states that pins hold, once for each pin.
    pub(crate) fn held(&self) -> impl Iterator<Item = StateId> {
        self.by_name.values().filter_map(|pin| pin.held).map(|(_, state)| state)
    }
}
