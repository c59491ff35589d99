//! Which cores have which blocks in their caches, by the short names of what they hold: those that their news told of,
//! and those that requests placed there are about to compute. The former are as many as the cores say, the latter have
//! a bound. Knows neither tokens nor load.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::kv_cache::changes::Change;
use crate::kv_cache::hash::HashMapByShort;
use crate::kv_layout::GroupLayout;

use super::core_set::{CoreSet, MOST_CORES};

/// Most names that requests keep expected; beyond, the oldest requests' are dropped.
const MOST_EXPECTED: usize = 1 << 18;

#[derive(Default)]
pub(crate) struct PrefixIndex {
    known: HashMapByShort<CoreSet>,
    expected: HashMapByShort<CoreSet>,
    last_requests: HashMapByShort<u64>, // that are expected to store a name on a core, by `at`
    by_request: BTreeMap<u64, Request>,
    num_expected: usize, // names in `by_request`
}

struct Request {
    place: usize,
    names: Vec<u64>,
}

impl PrefixIndex {
    /// The core at `place` tells how its cache has changed.
    pub(crate) fn change(&mut self, place: usize, changes: &[Change]) {
        let core = CoreSet::of(place);
        for &change in changes {
            match change {
                Change::Cleared => remove(&mut self.known, core),
                Change::Stored(name) => {
                    let cores = self.known.entry(name).or_default();
                    *cores = cores.with(core);
                }
                Change::Removed(name) => remove_from(&mut self.known, name, core),
            }
        }
    }

    /// Nothing is on the core at `place` any more, nor will be.
    pub(crate) fn forget(&mut self, place: usize) {
        self.change(place, &[Change::Cleared]);
        let Self { by_request, last_requests, num_expected, .. } = self;
        by_request.retain(|_, request| {
            let stays = request.place != place;
            if !stays {
                *num_expected -= request.names.len();
                for &name in &request.names {
                    last_requests.remove(&at(name, place));
                }
            }
            stays
        });
        remove(&mut self.expected, CoreSet::of(place));
    }

    /// A request was placed: what of these names its core has not, it will have. Ids rise.
    pub(crate) fn expect(&mut self, id: u64, place: usize, names: impl Iterator<Item = u64>) {
        let core = CoreSet::of(place);
        let names: Vec<_> =
            names.filter(|name| !self.known.get(name).is_some_and(|cores| cores.contains(place))).collect();
        for &name in &names {
            let cores = self.expected.entry(name).or_default();
            *cores = cores.with(core);
            self.last_requests.insert(at(name, place), id);
        }
        if names.is_empty() {
            return;
        }
        self.num_expected += names.len();
        self.by_request.insert(id, Request { place, names });
        while self.num_expected > MOST_EXPECTED {
            let Some((id, request)) = self.by_request.pop_first() else { break };
            self.unexpect(id, &request);
        }
    }

    /// Names known on the core at `place`.
    #[cfg(test)]
    pub(crate) fn known(&self, place: usize) -> std::collections::BTreeSet<u64> {
        self.known.iter().filter(|(_, cores)| cores.contains(place)).map(|(&name, _)| name).collect()
    }

    /// Names that are known anywhere, and those that are expected, by name and by request.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        let num_by_request = self.by_request.values().map(|request| request.names.len()).sum();
        assert_eq!(self.num_expected, num_by_request);
        [self.known.len(), self.expected.len(), self.last_requests.len(), num_by_request]
    }

    /// Where a request is whose names are expected still.
    pub(crate) fn place_of(&self, id: u64) -> Option<usize> {
        self.by_request.get(&id).map(|request| request.place)
    }

    /// What the request was expected to store is known by now, or will not be stored.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(request) = self.by_request.remove(&id) {
            self.unexpect(id, &request);
        }
    }

    /// Of the blocks of a prompt, how many from the start each of `cores` has, into `lengths` by place. The names are
    /// of the first group of layers; `group_name` gives those of another.
    pub(crate) fn longest_starts(&self, names: &[u64], cores: CoreSet, lengths: &mut [u32; MOST_CORES]) {
        let mut left = cores;
        for (length, name) in (0..).zip(names) {
            let here = left.and(self.cores_with(*name, left));
            for place in left.without(here).iter() {
                lengths[place] = length;
            }
            left = here;
            if left.is_empty() {
                return;
            }
        }
        for place in left.iter() {
            lengths[place] = names.len() as u32;
        }
    }

    /// The same for one core whose layers read unequally far back: the longest start of which all are there that the
    /// token after it reads.
    pub(crate) fn longest_start(&self, names: &[u64], place: usize, groups: &[GroupLayout]) -> u32 {
        let core = CoreSet::of(place);
        let is_known = |group: usize, index: u32| {
            let name = names[index as usize].wrapping_add(group as u64);
            self.cores_with(name, core).contains(place)
        };
        let groups = || groups.iter().enumerate();
        let mut length = names.len() as u32;
        for (group, _) in groups().filter(|(_, layout)| !layout.has_window()) {
            length = (0..length).take_while(|&index| is_known(group, index)).count() as u32;
        }
        loop {
            let before = length;
            for (group, layout) in groups().filter(|(_, layout)| layout.has_window()) {
                length = layout.longest_start(length, |index| is_known(group, index));
            }
            if length == before {
                return length;
            }
        }
    }

    /// What of `cores`, and of others, has or will have this.
    fn cores_with(&self, name: u64, cores: CoreSet) -> CoreSet {
        let known = self.known.get(&name).copied().unwrap_or_default();
        if cores.without(known).is_empty() {
            return known;
        }
        known.with(self.expected.get(&name).copied().unwrap_or_default())
    }

    /// What a later request on the same core has as well stays.
    fn unexpect(&mut self, id: u64, request: &Request) {
        self.num_expected -= request.names.len();
        for &name in &request.names {
            if let Entry::Occupied(entry) = self.last_requests.entry(at(name, request.place)) {
                if *entry.get() == id {
                    entry.remove();
                    remove_from(&mut self.expected, name, CoreSet::of(request.place));
                }
            }
        }
    }
}

/// A name on one core, as a name: as unlike others as any.
fn at(name: u64, place: usize) -> u64 {
    (name ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn remove(from: &mut HashMapByShort<CoreSet>, core: CoreSet) {
    from.retain(|_, cores| {
        *cores = cores.without(core);
        !cores.is_empty()
    });
}

fn remove_from(from: &mut HashMapByShort<CoreSet>, name: u64, core: CoreSet) {
    if let Entry::Occupied(mut entry) = from.entry(name) {
        let cores = entry.get().without(core);
        if cores.is_empty() {
            entry.remove();
        } else {
            *entry.get_mut() = cores;
        }
    }
}
