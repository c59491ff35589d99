//! Which cores have which blocks in their caches, by the short hashes of these blocks: those that their load reports told of,
//! and those that requests placed there are about to compute. The former are as many as the cores say, the latter have
//! a bound. Knows neither tokens nor load.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::kv_cache::changes::Change;
use crate::kv_cache::hash::HashMapByShort;
use crate::kv_layout::GroupLayout;

use super::core_set::{CoreSet, MAX_CORES};

/// Most hashes that requests keep expected; beyond, the oldest requests' are dropped.
const MAX_EXPECTED: usize = 1 << 18;

pub(crate) struct PrefixIndex {
    known: HashMapByShort<CoreSet>,
    expected: HashMapByShort<CoreSet>,
    last_requests: HashMapByShort<u64>, // that are expected to store a hash on a core, by `at`
    by_request: BTreeMap<u64, Request>,
    num_expected: usize, // hashes in `by_request`
    most_expected: usize,
}

struct Request {
    slot: usize,
    hashes: Vec<u64>,
}

impl PrefixIndex {
    pub(crate) fn new() -> Self {
        Self {
            known: HashMapByShort::default(),
            expected: HashMapByShort::default(),
            last_requests: HashMapByShort::default(),
            by_request: BTreeMap::new(),
            num_expected: 0,
            most_expected: MAX_EXPECTED,
        }
    }

    /// The core at `slot` tells how its cache has changed.
    pub(crate) fn change(&mut self, slot: usize, changes: &[Change]) {
        let core = CoreSet::of(slot);
        for &change in changes {
            match change {
                Change::Cleared => remove(&mut self.known, core),
                Change::Stored(hash) => {
                    let cores = self.known.entry(hash).or_default();
                    *cores = cores.with(core);
                }
                Change::Removed(hash) => remove_from(&mut self.known, hash, core),
            }
        }
    }

    /// Nothing is on the core at `slot` any more, nor will be.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.change(slot, &[Change::Cleared]);
        let Self { by_request, last_requests, num_expected, .. } = self;
        by_request.retain(|_, request| {
            let stays = request.slot != slot;
            if !stays {
                *num_expected -= request.hashes.len();
                for &hash in &request.hashes {
                    last_requests.remove(&at(hash, slot));
                }
            }
            stays
        });
        remove(&mut self.expected, CoreSet::of(slot));
    }

    /// A request was placed: what of these hashes its core has not, it will have. Ids rise.
    pub(crate) fn expect(&mut self, id: u64, slot: usize, hashes: impl Iterator<Item = u64>) {
        let core = CoreSet::of(slot);
        let hashes: Vec<_> =
            hashes.filter(|hash| !self.known.get(hash).is_some_and(|cores| cores.contains(slot))).collect();
        for &hash in &hashes {
            let cores = self.expected.entry(hash).or_default();
            *cores = cores.with(core);
            self.last_requests.insert(at(hash, slot), id);
        }
        if hashes.is_empty() {
            return;
        }
        self.num_expected += hashes.len();
        self.by_request.insert(id, Request { slot, hashes });
        while self.num_expected > self.most_expected {
            let Some((id, request)) = self.by_request.pop_first() else { break };
            self.unexpect(id, &request);
        }
    }

    /// Hashes known on the core at `slot`.
    #[cfg(test)]
    pub(crate) fn known(&self, slot: usize) -> std::collections::BTreeSet<u64> {
        self.known.iter().filter(|(_, cores)| cores.contains(slot)).map(|(&hash, _)| hash).collect()
    }

    /// Hashes that are known anywhere, and those that are expected, by hash and by request.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        let num_by_request = self.by_request.values().map(|request| request.hashes.len()).sum();
        assert_eq!(self.num_expected, num_by_request);
        [self.known.len(), self.expected.len(), self.last_requests.len(), num_by_request]
    }

    /// Where a request is whose hashes are expected still.
    pub(crate) fn slot_of(&self, id: u64) -> Option<usize> {
        self.by_request.get(&id).map(|request| request.slot)
    }

    /// What the request was expected to store is known by now, or will not be stored.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(request) = self.by_request.remove(&id) {
            self.unexpect(id, &request);
        }
    }

    /// Of the blocks of a prompt, how many from the start each of `cores` has, into `lengths` by slot. The hashes are
    /// those in the first group of layers; `hash + group` is the block's hash in another group.
    pub(crate) fn longest_prefixes(&self, hashes: &[u64], cores: CoreSet, lengths: &mut [u32; MAX_CORES]) {
        let mut left = cores;
        for (length, hash) in (0..).zip(hashes) {
            let here = left.and(self.cores_with(*hash, left));
            for slot in left.without(here).iter() {
                lengths[slot] = length;
            }
            left = here;
            if left.is_empty() {
                return;
            }
        }
        for slot in left.iter() {
            lengths[slot] = hashes.len() as u32;
        }
    }

    /// The same for one core whose layers read unequally far back: the longest start of which all are there that the
    /// token after it reads.
    pub(crate) fn longest_prefix(&self, hashes: &[u64], slot: usize, groups: &[GroupLayout]) -> u32 {
        let core = CoreSet::of(slot);
        let is_known = |group: usize, index: u32| {
            let hash = hashes[index as usize].wrapping_add(group as u64);
            self.cores_with(hash, core).contains(slot)
        };
        let groups = || groups.iter().enumerate();
        let mut length = hashes.len() as u32;
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
    fn cores_with(&self, hash: u64, cores: CoreSet) -> CoreSet {
        let known = self.known.get(&hash).copied().unwrap_or_default();
        if cores.without(known).is_empty() {
            return known;
        }
        known.with(self.expected.get(&hash).copied().unwrap_or_default())
    }

    /// What a later request on the same core has as well stays.
    fn unexpect(&mut self, id: u64, request: &Request) {
        self.num_expected -= request.hashes.len();
        for &hash in &request.hashes {
            if let Entry::Occupied(entry) = self.last_requests.entry(at(hash, request.slot)) {
                if *entry.get() == id {
                    entry.remove();
                    remove_from(&mut self.expected, hash, CoreSet::of(request.slot));
                }
            }
        }
    }
}

/// A hash on one core, as one hash. Those of the groups of one block are next to one another, these are far apart.
fn at(hash: u64, slot: usize) -> u64 {
    hash.wrapping_add((slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn remove(from: &mut HashMapByShort<CoreSet>, core: CoreSet) {
    from.retain(|_, cores| {
        *cores = cores.without(core);
        !cores.is_empty()
    });
}

fn remove_from(from: &mut HashMapByShort<CoreSet>, hash: u64, core: CoreSet) {
    if let Entry::Occupied(mut entry) = from.entry(hash) {
        let cores = entry.get().without(core);
        if cores.is_empty() {
            entry.remove();
        } else {
            *entry.get_mut() = cores;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(index: &PrefixIndex, hashes: &[u64]) -> [u32; 2] {
        let mut lengths = [0; MAX_CORES];
        index.longest_prefixes(hashes, CoreSet::of(0).with(CoreSet::of(1)), &mut lengths);
        [lengths[0], lengths[1]]
    }

    #[test]
    fn a_start_ends_where_a_block_is_missing() {
        let mut index = PrefixIndex::new();
        index.change(0, &[1, 2, 4].map(Change::Stored));
        index.change(1, &[1, 2, 3].map(Change::Stored));
        assert_eq!(lengths(&index, &[1, 2, 3, 4]), [2, 3]);
        index.expect(0, 0, [2, 3].into_iter());
        assert_eq!(lengths(&index, &[1, 2, 3, 4]), [4, 3]);
        index.change(1, &[Change::Removed(1)]);
        index.change(0, &[Change::Cleared]);
        assert_eq!((lengths(&index, &[1, 2, 3]), lengths(&index, &[3])), ([0, 0], [1, 1]));
    }

    #[test]
    fn what_is_expected_has_a_bound_and_the_oldest_goes_first() {
        let mut index = PrefixIndex { most_expected: 5, ..PrefixIndex::new() };
        index.expect(0, 0, 0..3);
        index.expect(1, 1, 0..3);
        assert_eq!((lengths(&index, &[0, 1, 2]), index.sizes()), ([0, 3], [0, 3, 3, 3]));
        index.expect(2, 0, 0..6);
        assert_eq!((lengths(&index, &[0, 1, 2]), index.sizes()), ([0, 0], [0; 4]));
    }

    #[test]
    fn what_several_requests_will_store_is_expected_until_the_last_has_ended() {
        let mut index = PrefixIndex::new();
        index.expect(0, 0, 0..3);
        index.expect(1, 0, 0..2);
        index.expect(2, 1, 0..1);
        index.end(0);
        assert_eq!(lengths(&index, &[0, 1, 2]), [2, 1]);
        index.end(1);
        assert_eq!((lengths(&index, &[0, 1, 2]), index.slot_of(1), index.slot_of(2)), ([0, 1], None, Some(1)));
    }
}
