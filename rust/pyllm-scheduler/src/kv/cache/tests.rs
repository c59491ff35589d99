//! Sequences on a small cache of two tiers, with simulated memory that follows the swaps and rows: after any calls,
//! each block has the contents of its name or its sequence, and readers of the events know the contents of the cache.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::config::KvGroup;
use crate::error::Error;
use crate::kv::cache::events::{KvEvent, Tier};
use crate::kv::cache::host_block::HostBlock;
use crate::kv::cache::pending_swaps::Swap;

const BLOCK_SIZE: usize = 2;
const NUM_TEXTS: i32 = 4;
const NUM_ALIKE: i32 = 2; // blocks at the start of all texts

const CORNERS: [&str; 12] = [
    "blocks that the host had already",
    "host evictions",
    "host hits",
    "pins refused",
    "private blocks swapped out",
    "same names twice",
    "snapshots",
    "swap-ins",
    "swap-outs",
    "swap-outs refused",
    "things pinned",
    "write-backs",
];

#[derive(Clone, Debug)]
enum Call {
    Start { text: i32, length: usize, private: bool },
    Grow { pick: usize },
    End { pick: usize },
    SwapOut { pick: usize },
    SwapIn { pick: usize },
    DropSwapped { pick: usize },
    Plan,
    Commit,
    Pin { name: u64, text: i32, length: usize },
    Unpin { name: u64 },
    Forget,
    Clear,
    Listen,
    Snapshot,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let pick = any::<usize>;
    let text = 0..NUM_TEXTS;
    let call = prop_oneof![
        8 => (text.clone(), 0..6_usize, any::<bool>())
            .prop_map(|(text, length, private)| Call::Start { text, length, private }),
        4 => pick().prop_map(|pick| Call::Grow { pick }),
        5 => pick().prop_map(|pick| Call::End { pick }),
        3 => pick().prop_map(|pick| Call::SwapOut { pick }),
        3 => pick().prop_map(|pick| Call::SwapIn { pick }),
        1 => pick().prop_map(|pick| Call::DropSwapped { pick }),
        8 => Just(Call::Plan),
        8 => Just(Call::Commit),
        1 => (0..3_u64, text, 1..6_usize).prop_map(|(name, text, length)| Call::Pin { name, text, length }),
        1 => (0..3_u64).prop_map(|name| Call::Unpin { name }),
        1 => Just(Call::Forget),
        1 => Just(Call::Clear),
        2 => Just(Call::Listen),
        2 => Just(Call::Snapshot),
    ];
    prop::collection::vec(call, 1..120)
}

fn limits() -> impl Strategy<Value = CacheLimits> {
    (4..16_u32, 0..10_u32, 0..5_u32).prop_map(|(num_blocks, num_host_blocks, max_pinned_blocks)| CacheLimits {
        groups: groups(),
        block_size: BLOCK_SIZE as u32,
        num_blocks,
        num_host_blocks,
        num_states: 0,
        num_host_states: 0,
        max_pinned_blocks,
        max_saving_blocks: 0,
        enable_prefix_caching: true,
        enable_events: true,
        incarnation: 7,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_hold_what_they_are_said_to_and_events_tell_all(limits in limits(), calls in calls()) {
        World::new(limits).run(&calls);
    }
}

/// The property above proves nothing about states that its cases do not reach.
#[test]
fn the_cases_reach_every_corner() {
    let mut runner = TestRunner::deterministic();
    let mut total = BTreeMap::<_, u64>::new();
    for _ in 0..200 {
        let (limits, calls) = (limits(), calls()).new_tree(&mut runner).expect("a case").current();
        let mut world = World::new(limits);
        world.run(&calls);
        for (what, times) in world.seen {
            *total.entry(what).or_default() += times;
        }
    }
    for corner in CORNERS {
        assert!(total.get(corner).is_some_and(|&times| times > 0), "{corner} is not among {total:?}");
    }
}

/// One sequence of two full blocks that fills a small device, with the names of its blocks.
fn full_device(num_host_blocks: u32) -> (KvCache, Vec<BlockId>, Vec<BlockHash>) {
    let mut cache = KvCache::new(CacheLimits {
        groups: groups(),
        block_size: BLOCK_SIZE as u32,
        num_blocks: 2,
        num_host_blocks,
        num_states: 0,
        num_host_states: 0,
        max_pinned_blocks: 1,
        max_saving_blocks: 0,
        enable_prefix_caching: true,
        enable_events: false,
        incarnation: 0,
    });
    let blocks = vec![cache.allocate(0), cache.allocate(0)];
    let hashes = chain(0, 2);
    for (index, parent) in [root(), hashes[0]].into_iter().enumerate() {
        let tokens = (&tokens(0, index as i32)[..], &[][..]);
        let content = Content { hash: hashes[index], parent, index: index as u32, tokens, adapter: "" };
        cache.store(blocks[index], 0, content, StepId(0));
    }
    (cache, blocks, hashes)
}

fn found(cache: &KvCache, hashes: &[BlockHash]) -> Vec<Found> {
    find_start(cache, hashes, StepId(1), StepId(1))
}

fn find_start(cache: &KvCache, hashes: &[BlockHash], planning: StepId, committed: StepId) -> Vec<Found> {
    let mut found = FoundStart { chains: vec![FoundChain::default()], ..FoundStart::default() };
    let hash_of = |index: u32| hashes[index as usize];
    cache.find_start(hashes.len() as u32, hash_of, |length| length, planning, committed, &mut found);
    let FoundStart { length, mut chains, .. } = found;
    assert_eq!((chains[0].first, chains[0].blocks.len() as u32), (0, length));
    chains.remove(0).blocks
}

fn held(block: HostBlockId, Name { key, index, .. }: Name) -> HostBlock {
    HostBlock { block, group: key.group, index, hash: *key.hash.as_bytes() }
}

fn swaps(cache: &mut KvCache) -> Vec<Swap<BlockId, HostBlockId>> {
    cache.drain_swaps().map(|(swap, _)| swap).collect()
}

fn groups() -> Vec<GroupLayout> {
    vec![GroupLayout::new(KvGroup::default(), BLOCK_SIZE as u32, 1)]
}

fn keys(hashes: &[BlockHash]) -> Vec<GroupHash> {
    hashes.iter().map(|hash| hash.of(0)).collect()
}

#[test]
fn what_the_device_evicts_is_found_on_the_host_and_comes_back() {
    let (mut cache, mut blocks, hashes) = full_device(1);
    let tail = blocks[1];
    cache.free_chain(&mut blocks);
    assert_eq!(cache.allocate(0), tail);
    let host = HostBlockId(0);
    assert_eq!(found(&cache, &hashes), [Found::Device(BlockId(0)), Found::Host(host)]);
    assert_eq!(swaps(&mut cache), [Swap::Out { device: tail, host }]);
    cache.end_plan();
    cache.free(tail);
    assert_eq!(cache.swap_in(host, 0), tail);
    assert_eq!(swaps(&mut cache), [Swap::In { host, device: tail }]);
}

#[test]
fn what_the_host_held_before_the_loss_of_the_device_is_found_and_comes_back() {
    let (mut cache, mut blocks, hashes) = full_device(2);
    let hosts = cache.swap_out(&blocks).unwrap();
    let names: Vec<_> = cache.drain_swaps().map(|(_, name)| name.unwrap()).collect();
    assert_eq!(names.iter().map(|name| name.key).collect::<Vec<_>>(), keys(&hashes));
    cache.free_chain(&mut blocks);
    cache.clear();
    assert_eq!(found(&cache, &hashes), []);
    let restored = hosts.iter().zip(names).map(|(&host, name)| held(host, name));
    let restored: Vec<_> = restored.collect();
    assert_eq!(cache.cannot_restore(&restored), None);
    cache.restore_host(restored.clone());
    assert!(cache.cannot_restore(&restored[1..]).is_some());
    assert_eq!(cache.blocks.host.num_free(), 2);
    assert_eq!(found(&cache, &hashes), hosts.iter().map(|&host| Found::Host(host)).collect::<Vec<_>>());
    let device = cache.swap_in(hosts[0], 0);
    assert_eq!(swaps(&mut cache), [Swap::In { host: hosts[0], device }]);
    cache.audit().unwrap();
}

#[test]
fn what_is_forgotten_on_its_way_to_the_host_has_no_name_there() {
    let (mut cache, blocks, _) = full_device(2);
    cache.swap_out(&blocks).unwrap();
    cache.forget();
    assert!(cache.drain_swaps().all(|(_, name)| name.is_none()));
}

#[test]
fn of_two_restored_blocks_with_equal_contents_the_first_stays() {
    let (mut cache, _, hashes) = full_device(2);
    cache.clear();
    let name = Name { key: hashes[0].of(0), index: 0, filled: StepId(0), saved: Saved::Nothing };
    cache.restore_host(vec![held(HostBlockId(1), name), held(HostBlockId(0), name)]);
    assert_eq!(found(&cache, &hashes), [Found::Host(HostBlockId(1))]);
    assert_eq!((cache.blocks.host.num_free(), cache.blocks.host.num_cached()), (2, 1));
    cache.audit().unwrap();
}

#[test]
fn a_swap_takes_room_for_all_blocks_or_none_and_copies_each_once() {
    let (mut cache, mut blocks, hashes) = full_device(1);
    assert_eq!(cache.swap_out(&blocks), None);
    assert!(!cache.has_swaps() && cache.blocks.host.num_free() == 1);
    let (mut cache, _, _) = full_device(2);
    let mut hosts = cache.swap_out(&blocks).unwrap();
    assert_eq!(cache.drain_swaps().count(), 2);
    cache.end_plan();
    cache.free_host(&mut hosts.clone());
    assert_eq!(cache.swap_out(&blocks), Some(hosts.clone()));
    assert!(!cache.has_swaps());
    cache.free_chain(&mut blocks);
    let _ = (cache.allocate(0), cache.allocate(0));
    assert!(!cache.has_swaps(), "the host has what is evicted");
    assert_eq!(found(&cache, &hashes), [Found::Host(hosts[0]), Found::Host(hosts[1])]);
    cache.free_host(&mut hosts);
}

#[test]
fn a_pinned_block_is_not_free_until_it_is_unpinned() {
    let (mut cache, mut blocks, hashes) = full_device(0);
    assert_eq!(
        cache.pin(5, keys(&hashes), Vec::new()),
        Err(Error::PinQuota { asked: 2, pinned: 0, num_pins: 0, quota: 1 })
    );
    assert_eq!(cache.pin(5, keys(&hashes[..1]), Vec::new()), Ok(()));
    let head = blocks[0];
    cache.free_chain(&mut blocks);
    assert_eq!((cache.num_free(), cache.num_pinned(), cache.pinned_references(head)), (1, 1, 1));
    assert!(cache.unpin(5) && !cache.unpin(5));
    assert_eq!((cache.num_free(), cache.num_pinned(), cache.pinned_references(head)), (2, 0, 0));
}

/// A sequence and the expected contents of its blocks. The last one may be partly full, without a name.
struct Chain {
    text: i32,
    contents: Vec<BlockHash>,
    private: bool,
    /// The plan in progress has a row of it, so it continues until that plan is made.
    planned: StepId,
}

/// The contents that one reader of events knows.
#[derive(Default)]
struct Listener {
    known: BTreeSet<([u8; 32], Tier)>,
    next: u64,
}

struct World {
    cache: KvCache,
    device: Vec<Option<BlockHash>>,
    host: Vec<Option<BlockHash>>,
    writes: Vec<(BlockId, BlockHash)>, // of the plan in progress
    running: Vec<(Chain, Vec<BlockId>)>,
    swapped: Vec<(Chain, Vec<HostBlockId>)>,
    pins: BTreeMap<u64, Vec<BlockHash>>,
    planning: StepId,
    committed: StepId,
    num_private: u32,
    always: Listener,
    late: Option<Listener>,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(limits: CacheLimits) -> Self {
        Self {
            device: vec![None; limits.num_blocks as usize],
            host: vec![None; limits.num_host_blocks as usize],
            cache: KvCache::new(limits),
            writes: Vec::new(),
            running: Vec::new(),
            swapped: Vec::new(),
            pins: BTreeMap::new(),
            planning: StepId(0),
            committed: StepId(0),
            num_private: 0,
            always: Listener::default(),
            late: None,
            seen: BTreeMap::new(),
        }
    }

    fn run(&mut self, calls: &[Call]) {
        for call in calls {
            let pinned = self.pinned_and_there();
            let kept = !matches!(call, Call::Unpin { .. } | Call::Forget | Call::Clear);
            self.call(call);
            self.audit();
            assert!(
                !kept || pinned.iter().all(|&hash| self.cache.blocks.device.get(hash.of(0)).is_some()),
                "a pin was evicted"
            );
        }
        self.plan();
        self.listen();
    }

    fn call(&mut self, call: &Call) {
        match *call {
            Call::Start { text, length, private } => self.start(text, length, private),
            Call::Grow { pick } => self.grow(pick),
            Call::End { pick } => {
                if let Some((_, mut blocks)) = self.take_running(pick) {
                    self.cache.free_chain(&mut blocks);
                }
            }
            Call::SwapOut { pick } => self.swap_out(pick),
            Call::SwapIn { pick } => self.swap_in(pick),
            Call::DropSwapped { pick } => {
                if let Some(index) = pick.checked_rem(self.swapped.len()) {
                    self.cache.free_host(&mut self.swapped.remove(index).1);
                }
            }
            Call::Plan => self.plan(),
            Call::Commit => self.committed = self.planning.min(StepId(self.committed.0 + 1)),
            Call::Pin { name, text, length } => self.pin(name, text, length),
            Call::Unpin { name } => {
                let was_there = self.pins.remove(&name).is_some();
                assert_eq!(self.cache.unpin(name), was_there);
            }
            Call::Forget => {
                self.cache.forget();
                assert_eq!(
                    (self.cache.num_cached(), self.cache.blocks.host.num_cached(), self.cache.num_pinned()),
                    (0, 0, 0)
                );
            }
            Call::Clear => self.clear(),
            Call::Listen => self.listen(),
            Call::Snapshot => self.snapshot(),
        }
    }

    fn start(&mut self, text: i32, length: usize, private: bool) {
        let mut contents = chain(text, length);
        let found = find_start(&self.cache, &contents, self.planning, self.committed);
        let num_new = contents.len() - found.len() + usize::from(private);
        let is_taken = |found: &&Found| match found {
            Found::Device(block) => self.cache.references(*block) == 0,
            Found::Host(_) => true,
        };
        if num_new + found.iter().filter(is_taken).count() > self.cache.num_free() as usize {
            return;
        }
        let mut hosts = Vec::new();
        for &found in &found {
            match found {
                Found::Device(block) => self.cache.share(block),
                Found::Host(host) => {
                    self.cache.share_host(host);
                    hosts.push(host);
                }
            }
        }
        self.saw("host hits", hosts.len() as u64);
        let mut blocks = Vec::new();
        for (index, &found) in found.iter().enumerate() {
            blocks.push(match found {
                Found::Device(block) => block,
                Found::Host(host) => {
                    let block = self.cache.swap_in(host, 0);
                    self.store(block, text, index);
                    block
                }
            });
        }
        self.cache.free_host(&mut hosts);
        for (index, &content) in contents.iter().enumerate().skip(found.len()) {
            let block = self.cache.allocate(0);
            self.writes.push((block, content));
            self.store(block, text, index);
            blocks.push(block);
        }
        if private {
            let block = self.cache.allocate(0);
            self.num_private += 1;
            contents.push(BlockHash::root(&["private", &self.num_private.to_string()]));
            self.writes.push((block, contents[length]));
            blocks.push(block);
        }
        self.running.push((Chain { text, contents, private, planned: self.planning }, blocks));
    }

    /// Fills a partly full block, or adds one.
    fn grow(&mut self, pick: usize) {
        let Some(index) = pick.checked_rem(self.running.len()) else { return };
        if self.running[index].0.planned == self.planning || self.cache.num_free() == 0 {
            return;
        }
        let (mut chain, mut blocks) = self.running.remove(index);
        let length = chain.contents.len() + usize::from(!chain.private);
        if chain.private {
            chain.contents.pop();
        } else {
            blocks.push(self.cache.allocate(0));
        }
        chain.contents = self::chain(chain.text, length);
        self.writes.push((blocks[length - 1], chain.contents[length - 1]));
        self.store(blocks[length - 1], chain.text, length - 1);
        (chain.private, chain.planned) = (false, self.planning);
        self.running.push((chain, blocks));
    }

    fn store(&mut self, block: BlockId, text: i32, index: usize) {
        let chain = chain(text, index + 1);
        let parent = if index == 0 { root() } else { chain[index - 1] };
        let tokens = tokens(text, index as i32);
        self.saw("same names twice", u64::from(self.cache.blocks.device.get(chain[index].of(0)).is_some()));
        let tokens = tokens.split_at(1);
        let content = Content { hash: chain[index], parent, index: index as u32, tokens, adapter: "" };
        self.cache.store(block, 0, content, self.planning);
    }

    /// Takes a sequence without a row in the plan in progress.
    fn take_running(&mut self, pick: usize) -> Option<(Chain, Vec<BlockId>)> {
        let index = pick.checked_rem(self.running.len())?;
        (self.running[index].0.planned < self.planning).then(|| self.running.remove(index))
    }

    fn swap_out(&mut self, pick: usize) {
        let Some((chain, mut blocks)) = self.take_running(pick) else { return };
        let num_free = self.cache.blocks.host.num_free();
        let num_swaps = self.num_swaps();
        let Some(hosts) = self.cache.swap_out(&blocks) else {
            assert_eq!(self.cache.blocks.host.num_free(), num_free);
            assert!(blocks.len() > num_free as usize);
            self.saw("swap-outs refused", 1);
            self.running.push((chain, blocks));
            return;
        };
        assert_eq!(hosts.len(), blocks.len());
        let num_copied = self.num_swaps() - num_swaps;
        self.saw("swap-outs", 1);
        self.saw("private blocks swapped out", u64::from(chain.private));
        self.saw("blocks that the host had already", (hosts.len() - num_copied) as u64);
        self.cache.free_chain(&mut blocks);
        self.swapped.push((chain, hosts));
    }

    /// Swaps at the end of the plan in progress.
    fn num_swaps(&self) -> usize {
        let hosts = (0..self.cache.blocks.host.num_blocks()).map(HostBlockId);
        let blocks = &self.cache.blocks;
        hosts.map(|host| (blocks.host.references(host) - blocks.references_host(host)) as usize).sum()
    }

    fn swap_in(&mut self, pick: usize) {
        let Some(index) = pick.checked_rem(self.swapped.len()) else { return };
        if self.swapped[index].1.len() > self.cache.num_free() as usize {
            return;
        }
        let (mut chain, mut hosts) = self.swapped.remove(index);
        let blocks: Vec<_> = hosts.iter().map(|&host| self.cache.swap_in(host, 0)).collect();
        self.cache.free_host(&mut hosts);
        for (index, &block) in blocks.iter().enumerate().take(blocks.len() - usize::from(chain.private)) {
            self.store(block, chain.text, index);
        }
        chain.planned = self.planning;
        self.running.push((chain, blocks));
    }

    /// Runs the plan on the simulated memory, and checks every block.
    fn plan(&mut self) {
        let swaps: Vec<_> = self.cache.drain_swaps().map(|(swap, _)| swap).collect();
        assert!(!self.cache.has_swaps());
        let place = |swap: &Swap<BlockId, HostBlockId>| match *swap {
            Swap::Out { host, .. } => (false, host),
            Swap::In { host, .. } => (true, host),
        };
        assert!(swaps.is_sorted_by_key(place), "outs come before ins, each by host block");
        let (mut devices, mut hosts) = (BTreeSet::new(), BTreeSet::new());
        for swap in swaps {
            match swap {
                Swap::Out { device, host } => {
                    assert!(hosts.insert(host), "host block {host} is written twice");
                    self.host[host.0 as usize] = self.device[device.0 as usize];
                }
                Swap::In { host, device } => {
                    assert!(devices.insert(device), "block {device} is written twice");
                    self.device[device.0 as usize] = self.host[host.0 as usize];
                    self.saw("swap-ins", 1);
                }
            }
        }
        for (block, content) in self.writes.drain(..) {
            assert!(devices.insert(block), "block {block} is written twice");
            self.device[block.0 as usize] = Some(content);
        }
        self.cache.end_plan();
        self.planning = StepId(self.planning.0 + 1);
        self.look_at_every_block();
    }

    fn look_at_every_block(&self) {
        for (chain, blocks) in &self.running {
            let held: Vec<_> = blocks.iter().map(|block| self.device[block.0 as usize]).collect();
            assert!(held.into_iter().eq(chain.contents.iter().copied().map(Some)), "a sequence reads something else");
        }
        for (chain, hosts) in &self.swapped {
            let held: Vec<_> = hosts.iter().map(|host| self.host[host.0 as usize]).collect();
            assert!(held.into_iter().eq(chain.contents.iter().copied().map(Some)), "a copy is of something else");
        }
        for (block, name) in self.cache.blocks.device.known() {
            assert_eq!(self.device[block.0 as usize], Some(name.key.hash), "block {block} holds something else");
        }
        for (host, name) in self.cache.blocks.host.known() {
            assert_eq!(self.host[host.0 as usize], Some(name.key.hash), "host block {host} holds something else");
        }
    }

    fn pin(&mut self, name: u64, text: i32, length: usize) {
        let hashes = chain(text, length);
        if self.pins.contains_key(&name) {
            assert_eq!(self.cache.pin(name, keys(&hashes), Vec::new()), Err(Error::DuplicatePin { name }));
            return;
        }
        let mut all: Vec<_> = self.pins.values().flatten().chain(&hashes).map(|hash| *hash.as_bytes()).collect();
        all.sort_unstable();
        all.dedup();
        let quota = self.cache.limits.max_pinned_blocks as usize;
        let fits = all.len() <= quota && self.pins.len() < quota;
        assert_eq!(self.cache.pin(name, keys(&hashes), Vec::new()).is_ok(), fits);
        if fits {
            self.pins.insert(name, hashes);
        } else {
            self.saw("pins refused", 1);
        }
    }

    fn pinned_and_there(&self) -> Vec<BlockHash> {
        let wanted = self.pins.values().flatten().copied();
        wanted.filter(|&hash| self.cache.blocks.device.get(hash.of(0)).is_some()).collect()
    }

    fn clear(&mut self) {
        self.cache.clear();
        self.device.fill(None);
        self.host.fill(None);
        self.writes.clear();
        self.running.clear();
        self.swapped.clear();
        self.committed = self.planning;
        let limits = &self.cache.limits;
        assert_eq!(
            (self.cache.num_free(), self.cache.blocks.host.num_free()),
            (limits.num_blocks, limits.num_host_blocks)
        );
        assert!(!self.cache.has_swaps() && self.cache.num_cached() + self.cache.blocks.host.num_cached() == 0);
    }

    fn listen(&mut self) {
        let Events { incarnation, first, events } = self.cache.events(self.always.next, usize::MAX);
        assert_eq!((incarnation, first), (7, self.always.next));
        for (number, event) in (first..).zip(&events) {
            self.saw("write-backs", u64::from(matches!(event, KvEvent::Stored { tier: Tier::Host, .. })));
            self.saw("host evictions", u64::from(matches!(event, KvEvent::Removed { tier: Tier::Host, .. })));
            self.always.hear(number, event);
            if let Some(late) = &mut self.late {
                late.hear(number, event);
            }
        }
        let known = self.known();
        assert_eq!(self.always.known, known);
        assert!(self.late.as_ref().is_none_or(|late| late.known == known && late.next == self.always.next));
    }

    /// Adds a reader that starts from a snapshot.
    fn snapshot(&mut self) {
        let Snapshot { incarnation, next, events } = self.cache.snapshot();
        assert_eq!(incarnation, 7);
        let mut late = Listener::default();
        for event in &events {
            late.hear(late.next, event);
        }
        assert_eq!((late.known.len(), &late.known), (events.len(), &self.known()));
        let place =
            |wanted| events.iter().position(|event| matches!(event, KvEvent::Stored { hash, .. } if *hash == wanted));
        for (index, event) in events.iter().enumerate() {
            let KvEvent::Stored { parent: Some(parent), .. } = event else { continue };
            assert!(place(*parent).is_none_or(|place| place < index), "a block comes before the one it follows");
        }
        late.next = next;
        self.late = Some(late);
        self.saw("snapshots", 1);
    }

    fn known(&self) -> BTreeSet<([u8; 32], Tier)> {
        self.cache.blocks.known().map(|(key, tier)| (*key.hash.as_bytes(), tier)).collect()
    }

    fn audit(&mut self) {
        self.cache.audit().unwrap();
        for block in (0..self.cache.limits.num_blocks).map(BlockId) {
            let counted = self.running.iter().flat_map(|(_, blocks)| blocks).filter(|&&used| used == block).count();
            let pinned = self.cache.pinned_references(block);
            assert_eq!(self.cache.references(block), counted as u32 + pinned);
        }
        for host in (0..self.cache.blocks.host.num_blocks()).map(HostBlockId) {
            let counted = self.swapped.iter().flat_map(|(_, hosts)| hosts).filter(|&&used| used == host).count();
            assert_eq!(self.cache.blocks.references_host(host), counted as u32);
        }
        let wanted: BTreeSet<_> = self.pinned_and_there().into_iter().map(|hash| *hash.as_bytes()).collect();
        assert_eq!(self.cache.num_pinned() as usize, wanted.len());
        self.saw("things pinned", wanted.len() as u64);
    }

    fn saw(&mut self, what: &'static str, times: u64) {
        *self.seen.entry(what).or_default() += times;
    }
}

impl Listener {
    /// Repeated or missing events are mistakes.
    fn hear(&mut self, number: u64, event: &KvEvent) {
        if number < self.next {
            return;
        }
        assert_eq!(number, self.next);
        self.next += 1;
        match event {
            KvEvent::Stored { hash, parent, tokens, tier, group: 0, .. } => {
                assert_eq!(parent.unwrap_or_else(root).child(tokens), *hash);
                assert!(self.known.insert((*hash.as_bytes(), *tier)));
            }
            KvEvent::Removed { hash, tier, group: 0 } => assert!(self.known.remove(&(*hash.as_bytes(), *tier))),
            KvEvent::Cleared => self.known.clear(),
            other => panic!("{other:?} is of another group"),
        }
    }
}

fn root() -> BlockHash {
    BlockHash::root(&["test"])
}

fn tokens(text: i32, index: i32) -> [i32; BLOCK_SIZE] {
    [index, if index < NUM_ALIKE { 0 } else { text }]
}

/// The hashes of a text's first blocks.
fn chain(text: i32, length: usize) -> Vec<BlockHash> {
    let hashes = (0..length as i32).scan(root(), |parent, index| {
        *parent = parent.child(&tokens(text, index));
        Some(*parent)
    });
    hashes.collect()
}
