//! The cores that have each block cached, by the short hashes of blocks: those in the cores' load reports, and those
//! that placed requests are about to compute. The reports limit the former, a bound the latter. Knows neither tokens
//! nor load.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use crate::block_hash::HashMapByShort;
use crate::kv::cache::changes::Change;
use crate::kv_layout::GroupLayout;

use super::core_set::{CoreSet, MAX_CORES};

/// Maximum number of hashes that requests are expected to store, after `trim`; before, there may be half as many more.
const MAX_EXPECTED: usize = 1 << 18;

pub(crate) struct PrefixIndex {
    known: HashMapByShort<CoreSet>,
    expected: HashMapByShort<Expected>,
    last_elsewhere: HashMapByShort<u64>, // as `Expected::last` on its other cores, by `at`
    by_request: BTreeMap<u64, Request>,
    num_expected: usize, // hashes in `by_request`
    max_expected: usize,
}

struct Request {
    bit: usize,
    hashes: Vec<u64>,
}

/// A hash that requests will store. Most hashes are expected on one core, whose last request is here; `last_elsewhere`
/// has those of other cores.
struct Expected {
    cores: CoreSet,
    bit: usize, // one of them
    last: u64,  // the last request that will store it there
}

impl PrefixIndex {
    pub(crate) fn new() -> Self {
        Self {
            known: HashMapByShort::default(),
            expected: HashMapByShort::default(),
            last_elsewhere: HashMapByShort::default(),
            by_request: BTreeMap::new(),
            num_expected: 0,
            max_expected: MAX_EXPECTED,
        }
    }

    /// Applies changes of the cache of the core with this bit.
    pub(crate) fn change(&mut self, bit: usize, changes: &[Change]) {
        let core = CoreSet::of(bit);
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

    /// Removes all hashes, known and expected, of the core with this bit.
    pub(crate) fn forget(&mut self, bit: usize) {
        self.change(bit, &[Change::Cleared]);
        let by_request = std::mem::take(&mut self.by_request);
        for (id, request) in by_request {
            if request.bit == bit {
                self.unexpect(id, &request);
            } else {
                self.by_request.insert(id, request);
            }
        }
    }

    /// Adds the hashes that a placed request will store, without those known on its core. Ids increase. A request waits
    /// for this call, so it drops nothing until the table is 1.5 times its bound; `trim` drops the rest.
    pub(crate) fn expect(&mut self, id: u64, bit: usize, hashes: impl Iterator<Item = u64>) {
        let core = CoreSet::of(bit);
        let hashes: Vec<_> =
            hashes.filter(|hash| !self.known.get(hash).is_some_and(|cores| cores.contains(bit))).collect();
        for &hash in &hashes {
            let expected = self.expected.entry(hash).or_insert(Expected { cores: core, bit, last: id });
            expected.cores = expected.cores.with(core);
            if expected.bit == bit {
                expected.last = id;
            } else {
                self.last_elsewhere.insert(at(hash, bit), id);
            }
        }
        if hashes.is_empty() {
            return;
        }
        self.num_expected += hashes.len();
        self.by_request.insert(id, Request { bit, hashes });
        self.drop_oldest(self.max_expected + self.max_expected / 2);
    }

    /// Drops the oldest requests until the bound holds.
    pub(crate) fn trim(&mut self) {
        self.drop_oldest(self.max_expected);
    }

    /// Hashes known on the core of this bit.
    #[cfg(test)]
    pub(crate) fn known(&self, bit: usize) -> std::collections::BTreeSet<u64> {
        self.known.iter().filter(|(_, cores)| cores.contains(bit)).map(|(&hash, _)| hash).collect()
    }

    /// Numbers of known hashes, and of expected ones: by hash, by hash and core, and by request.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        let num_by_request = self.by_request.values().map(|request| request.hashes.len()).sum();
        assert_eq!(self.num_expected, num_by_request);
        let num_by_core = self.expected.values().map(|expected| expected.cores.iter().count()).sum();
        assert_eq!(self.expected.len() + self.last_elsewhere.len(), num_by_core);
        [self.known.len(), self.expected.len(), num_by_core, num_by_request]
    }

    /// The core of a request with expected hashes.
    pub(crate) fn bit_of(&self, id: u64) -> Option<usize> {
        self.by_request.get(&id).map(|request| request.bit)
    }

    /// Removes the expected hashes of a request, as they are known by now or will not be stored.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(request) = self.by_request.remove(&id) {
            self.unexpect(id, &request);
        }
    }

    /// Finds how many blocks from a prompt's start each of `cores` has, into `lengths` by bit. The hashes are those in
    /// the first group of layers; `hash + group` is the block's hash in another group.
    pub(crate) fn longest_prefixes(&self, hashes: &[u64], cores: CoreSet, lengths: &mut [u32; MAX_CORES]) {
        let mut left = cores;
        for (length, hash) in (0..).zip(hashes) {
            let here = left.and(self.cores_with(*hash, left));
            for bit in left.without(here).iter() {
                lengths[bit] = length;
            }
            left = here;
            if left.is_empty() {
                return;
            }
        }
        for bit in left.iter() {
            lengths[bit] = hashes.len() as u32;
        }
    }

    /// The same for one core whose layers have different windows, or states: the longest start of which all blocks that
    /// its next token reads are cached, and the state at its end. The group of states follows those of blocks.
    pub(crate) fn longest_prefix(&self, hashes: &[u64], bit: usize, groups: &[GroupLayout], has_states: bool) -> u32 {
        let core = CoreSet::of(bit);
        let is_known = |group: usize, index: u32| {
            let hash = hashes[index as usize].wrapping_add(group as u64);
            self.cores_with(hash, core).contains(bit)
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
            while has_states && length > 0 && !is_known(groups().len(), length - 1) {
                length -= 1;
            }
            if length == before {
                return length;
            }
        }
    }

    /// The cores that have or will have this hash, `cores` and others.
    fn cores_with(&self, hash: u64, cores: CoreSet) -> CoreSet {
        let known = self.known.get(&hash).copied().unwrap_or_default();
        if cores.without(known).is_empty() {
            return known;
        }
        self.expected.get(&hash).map_or(known, |expected| known.with(expected.cores))
    }

    fn drop_oldest(&mut self, max_expected: usize) {
        while self.num_expected > max_expected {
            let Some((id, request)) = self.by_request.pop_first() else { break };
            self.unexpect(id, &request);
        }
    }

    /// Removes a request's hashes, except those that a later request on the same core will store, too.
    fn unexpect(&mut self, id: u64, request: &Request) {
        self.num_expected -= request.hashes.len();
        for &hash in &request.hashes {
            let Entry::Occupied(mut entry) = self.expected.entry(hash) else { continue };
            let expected = entry.get_mut();
            if expected.bit != request.bit {
                if let Entry::Occupied(last) = self.last_elsewhere.entry(at(hash, request.bit)) {
                    if *last.get() == id {
                        last.remove();
                        expected.cores = expected.cores.without(CoreSet::of(request.bit));
                    }
                }
            } else if expected.last == id {
                expected.cores = expected.cores.without(CoreSet::of(request.bit));
                let next = expected.cores.iter().next();
                match next.and_then(|bit| Some((bit, self.last_elsewhere.remove(&at(hash, bit))?))) {
                    Some((bit, last)) => (expected.bit, expected.last) = (bit, last),
                    None => drop(entry.remove()),
                }
            }
        }
    }
}

/// A key of a hash on one core. Groups of one block have adjacent hashes; these keys are far apart.
fn at(hash: u64, bit: usize) -> u64 {
    hash.wrapping_add((bit as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The result equals that of one entry per hash and core. A step is a request to expect, an end of a request
        /// (the first or one in the middle), or the loss of a core.
        #[test]
        fn a_hash_is_expected_on_each_core_until_its_last_request_there_ends(
            steps in prop::collection::vec((0..8_u32, 0..3_usize, 0..6_u64, 1..5_u64), 1..60)
        ) {
            let (mut index, mut last, mut requests) = (PrefixIndex::new(), BTreeMap::new(), BTreeMap::new());
            for (id, (step, bit, first, count)) in (0..).zip(steps) {
                match step {
                    0..4 => {
                        index.expect(id, bit, first..first + count);
                        last.extend((first..first + count).map(|hash| ((hash, bit), id)));
                        requests.insert(id, bit);
                    }
                    4..7 => {
                        let Some(&ended) = requests.keys().nth(requests.len() * first as usize / 6) else { continue };
                        index.end(ended);
                        last.retain(|_, &mut last| last != ended);
                        requests.remove(&ended);
                    }
                    _ => {
                        index.forget(bit);
                        last.retain(|&(_, on), _| on != bit);
                        requests.retain(|_, on| *on != bit);
                    }
                }
                for (hash, bit) in (0..12).flat_map(|hash| (0..3).map(move |bit| (hash, bit))) {
                    let found = index.cores_with(hash, CoreSet::of(bit)).contains(bit);
                    prop_assert_eq!(found, last.contains_key(&(hash, bit)));
                }
                prop_assert_eq!(index.sizes()[2], last.len());
            }
        }
    }

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
        let mut index = PrefixIndex { max_expected: 5, ..PrefixIndex::new() };
        index.expect(0, 0, 0..3);
        index.expect(1, 1, 0..3);
        assert_eq!((lengths(&index, &[0, 1, 2]), index.sizes()), ([3, 3], [0, 3, 6, 6]));
        index.trim();
        assert_eq!((lengths(&index, &[0, 1, 2]), index.sizes()), ([0, 3], [0, 3, 3, 3]));
        index.expect(2, 0, 0..8);
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
        assert_eq!((lengths(&index, &[0, 1, 2]), index.bit_of(1), index.bit_of(2)), ([0, 1], None, Some(1)));
    }
}
