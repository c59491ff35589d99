//! Events about the KV cache's contents, for routers that send each request to the engine with its prefix. A bounded
//! list of numbered events, and a snapshot for readers that join late or fall behind. Knows neither blocks nor
//! reference counts.

use std::collections::VecDeque;

use crate::block_hash::{BlockHash, Content, DigestSet, GroupHash, HashMapByDigest};

/// Number of events kept for readers.
const CAPACITY: usize = 100_000;

/// A change of the known contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block's contents have been added.
    Stored {
        /// Hash of the block's tokens and all before them.
        hash: BlockHash,
        /// Hash of the block before, which may be gone by now or, in a window or of states, never have been stored; none
        /// for the first block of a chain.
        parent: Option<BlockHash>,
        /// The block's tokens.
        tokens: Vec<i32>,
        /// `Request::adapter` of the requests that may share it.
        adapter: String,
        /// The tier.
        tier: Tier,
        /// The group of layers, as an index into `Config::kv_groups`; the group after the last is that of states, which
        /// have the names of the blocks that end where they do.
        group: u32,
    },
    /// A block's contents have been removed.
    Removed {
        /// The hash of `Stored`.
        hash: BlockHash,
        /// The tier.
        tier: Tier,
        /// The group of layers.
        group: u32,
    },
    /// All contents were forgotten on all tiers.
    Cleared,
}

impl KvEvent {
    /// The group of the contents; none if the event is about all of them.
    pub(crate) fn group(&self) -> Option<u32> {
        match self {
            Self::Stored { group, .. } | Self::Removed { group, .. } => Some(*group),
            Self::Cleared => None,
        }
    }
}

/// The tier of a block or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The KV cache.
    Device,
    /// The host pool.
    Host,
}

/// Events in order, numbered from `first` on. If that is more than the expected number, the events between were
/// dropped: take a `Snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The id of the cache that numbers the events. A new incarnation starts empty, at number 0.
    pub incarnation: u64,
    /// The number of the first event.
    pub first: u64,
    /// The events.
    pub events: Vec<KvEvent>,
}

/// All known contents, as events. Together with the events from number `next` on they give the current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// See `Events`.
    pub incarnation: u64,
    /// The number of the first later event.
    pub next: u64,
    /// `Stored` events only, each after the one of the block before in its chain.
    pub events: Vec<KvEvent>,
}

/// A log of events, empty unless enabled.
pub(crate) struct EventLog {
    enabled: bool,
    incarnation: u64,
    capacity: usize,
    next: u64,
    recent: VecDeque<KvEvent>, // up to `next`
    known: HashMapByDigest<Known>,
    untold: DigestSet, // restored contents on the host whose tokens are not known yet
}

struct Known {
    parent: BlockHash,
    index: u32,
    tokens: Vec<i32>,
    adapter: String,
    on_device: bool,
    on_host: bool,
}

impl EventLog {
    pub(crate) fn new(enabled: bool, incarnation: u64) -> Self {
        Self::with_capacity(enabled, incarnation, CAPACITY)
    }

    fn with_capacity(enabled: bool, incarnation: u64, capacity: usize) -> Self {
        let known = HashMapByDigest::default();
        let untold = DigestSet::default();
        Self { enabled, incarnation, capacity, next: 0, recent: VecDeque::new(), known, untold }
    }

    /// Logs new contents on the device.
    pub(crate) fn stored(&mut self, group: u32, content: &Content<'_>) {
        if self.enabled {
            let &Content { hash, parent, index, tokens: (head, tail), adapter } = content;
            let (key, tokens) = (hash.of(group), [head, tail].concat());
            let adapter = adapter.to_owned();
            let known = Known { parent, index, tokens, adapter, on_device: false, on_host: false };
            self.known.entry(key).or_insert(known);
            self.added(key, Tier::Device);
            if self.untold.remove(&key) {
                self.added(key, Tier::Host);
            }
        }
    }

    /// Notes restored contents on the host, of which only the name is known: logged as soon as their tokens are.
    pub(crate) fn restored(&mut self, key: GroupHash) {
        if self.enabled {
            self.untold.insert(key);
        }
    }

    /// Logs that contents of the device are on the host as well.
    pub(crate) fn copied(&mut self, key: GroupHash) {
        if self.enabled {
            self.added(key, Tier::Host);
        }
    }

    pub(crate) fn removed(&mut self, key: GroupHash, tier: Tier) {
        if !self.enabled || (tier == Tier::Host && self.untold.remove(&key)) {
            return;
        }
        if let Some(known) = self.known.get_mut(&key) {
            *known.place(tier) = false;
            if !known.on_device && !known.on_host {
                self.known.remove(&key);
            }
            self.push(KvEvent::Removed { hash: key.hash, tier, group: key.group });
        }
    }

    pub(crate) fn cleared(&mut self) {
        if self.enabled {
            self.known.clear();
            self.untold.clear();
            self.push(KvEvent::Cleared);
        }
    }

    /// At most `limit` events from number `first` on, without those dropped already. For any number of readers.
    pub(crate) fn events(&self, first: u64, limit: usize) -> Events {
        let (first, events) = self.since(first);
        Events { incarnation: self.incarnation, first, events: events.take(limit).cloned().collect() }
    }

    /// The events from number `first` on without a limit or a copy, and the number of the first one.
    pub(crate) fn since(&self, first: u64) -> (u64, impl ExactSizeIterator<Item = &KvEvent>) {
        let oldest = self.next - self.recent.len() as u64;
        let first = first.clamp(oldest, self.next);
        (first, self.recent.range((first - oldest) as usize..))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut known: Vec<_> = self.known.iter().collect();
        known.sort_unstable_by_key(|(key, known)| (known.index, key.hash.as_bytes(), key.group));
        let events = known.into_iter().flat_map(|(&key, known)| {
            let device = known.on_device.then(|| known.stored(key, Tier::Device));
            device.into_iter().chain(known.on_host.then(|| known.stored(key, Tier::Host)))
        });
        Snapshot { incarnation: self.incarnation, next: self.next, events: events.collect() }
    }

    /// See `Scheduler::audit`. `known` are the contents of both tiers.
    pub(crate) fn audit(&self, known: impl Iterator<Item = (GroupHash, Tier)>) -> Result<(), String> {
        if !self.enabled {
            return Ok(());
        }
        let is_told = |key, tier| {
            let is_untold = tier == Tier::Host && self.untold.contains(&key);
            is_untold || self.known.get(&key).is_some_and(|known| known.is_on(tier))
        };
        let (mut num_known, mut num_untold) = (0, 0);
        for (key, tier) in known {
            num_known += 1;
            num_untold += usize::from(!is_told(key, tier));
        }
        let places = self.known.values().map(|known| usize::from(known.on_device) + usize::from(known.on_host));
        let num_told = places.sum::<usize>() + self.untold.len();
        if (num_told, num_untold) == (num_known, 0) {
            return Ok(());
        }
        Err(format!("events told of {num_told} contents of {num_known}, and not of {num_untold} that are known"))
    }

    fn added(&mut self, key: GroupHash, tier: Tier) {
        if let Some(known) = self.known.get_mut(&key) {
            *known.place(tier) = true;
            let event = known.stored(key, tier);
            self.push(event);
        }
    }

    fn push(&mut self, event: KvEvent) {
        if self.recent.len() == self.capacity {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
        self.next += 1;
    }
}

impl Known {
    fn is_on(&self, tier: Tier) -> bool {
        match tier {
            Tier::Device => self.on_device,
            Tier::Host => self.on_host,
        }
    }

    fn place(&mut self, tier: Tier) -> &mut bool {
        match tier {
            Tier::Device => &mut self.on_device,
            Tier::Host => &mut self.on_host,
        }
    }

    fn stored(&self, key: GroupHash, tier: Tier) -> KvEvent {
        let parent = (self.index > 0).then_some(self.parent);
        let (tokens, adapter) = (self.tokens.clone(), self.adapter.clone());
        KvEvent::Stored { hash: key.hash, parent, tokens, adapter, tier, group: key.group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(log: &mut EventLog, parent: BlockHash, index: u32, tokens: &[i32]) -> BlockHash {
        let hash = parent.child(tokens);
        let (head, tail) = tokens.split_at(1);
        log.stored(0, &Content { hash, parent, index, tokens: (head, tail), adapter: "" });
        hash
    }

    #[test]
    fn events_are_numbered_and_name_the_block_before() {
        let mut log = EventLog::new(true, 7);
        let root = BlockHash::root(&[]);
        let one = store(&mut log, root, 0, &[1, 2]);
        let two = store(&mut log, one, 1, &[3, 4]);
        log.copied(two.of(0));
        log.removed(two.of(0), Tier::Device);
        let stored = |hash, parent, tokens: &[i32], tier| KvEvent::Stored {
            hash,
            parent,
            tokens: tokens.to_vec(),
            adapter: String::new(),
            tier,
            group: 0,
        };
        let events = [
            stored(one, None, &[1, 2], Tier::Device),
            stored(two, Some(one), &[3, 4], Tier::Device),
            stored(two, Some(one), &[3, 4], Tier::Host),
            KvEvent::Removed { hash: two, tier: Tier::Device, group: 0 },
        ];
        let now = vec![events[0].clone(), events[2].clone()];
        let (head, tail) = (events[..1].to_vec(), events[1..].to_vec());
        assert_eq!(log.events(0, 0), Events { incarnation: 7, first: 0, events: vec![] });
        for _ in 0..2 {
            assert_eq!(log.events(0, 1), Events { incarnation: 7, first: 0, events: head.clone() });
            assert_eq!(log.events(1, 9), Events { incarnation: 7, first: 1, events: tail.clone() });
        }
        assert_eq!(log.events(99, 9), Events { incarnation: 7, first: 4, events: vec![] });
        assert_eq!(log.snapshot(), Snapshot { incarnation: 7, next: 4, events: now });
        log.cleared();
        assert_eq!(log.events(4, 9), Events { incarnation: 7, first: 4, events: vec![KvEvent::Cleared] });
        assert_eq!(log.snapshot(), Snapshot { incarnation: 7, next: 5, events: vec![] });
    }

    #[test]
    fn the_oldest_events_are_dropped_and_the_first_number_moves() {
        let mut log = EventLog::with_capacity(true, 0, 2);
        for tokens in [[1, 1], [2, 2], [3, 3]] {
            store(&mut log, BlockHash::root(&[]), 0, &tokens);
        }
        let events = log.events(0, 9);
        assert_eq!((events.first, events.events.len()), (1, 2));
        assert_eq!((log.snapshot().next, log.snapshot().events.len()), (3, 3));
    }

    #[test]
    fn what_was_restored_is_told_of_when_its_tokens_are_known_and_not_if_it_goes_before() {
        let mut log = EventLog::new(true, 7);
        let root = BlockHash::root(&[]);
        let (one, two) = (root.child(&[1, 2]), root.child(&[3, 4]));
        log.restored(one.of(0));
        log.restored(two.of(0));
        log.audit([(one.of(0), Tier::Host), (two.of(0), Tier::Host)].into_iter()).unwrap();
        log.removed(two.of(0), Tier::Host);
        assert_eq!(log.events(0, 9).events, []);
        store(&mut log, root, 0, &[1, 2]);
        let tiers = log.events(0, 9).events.into_iter().map(|event| match event {
            KvEvent::Stored { hash, tier, .. } => (hash, tier),
            other => panic!("{other:?}"),
        });
        assert_eq!(tiers.collect::<Vec<_>>(), [(one, Tier::Device), (one, Tier::Host)]);
        log.audit([(one.of(0), Tier::Host), (one.of(0), Tier::Device)].into_iter()).unwrap();
        log.restored(two.of(0));
        log.cleared();
        log.audit([].into_iter()).unwrap();
    }

    #[test]
    fn nothing_is_kept_unless_it_is_enabled() {
        let mut log = EventLog::new(false, 7);
        let hash = store(&mut log, BlockHash::root(&[]), 0, &[1, 2]);
        log.copied(hash.of(0));
        log.cleared();
        assert_eq!(log.events(0, 9), Events { incarnation: 7, first: 0, events: vec![] });
        assert_eq!(log.snapshot(), Snapshot { incarnation: 7, next: 0, events: vec![] });
    }
}
