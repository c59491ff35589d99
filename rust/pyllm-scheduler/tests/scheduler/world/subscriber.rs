//! A subscriber, which knows the prefix cache from its events only.

use std::collections::{BTreeMap, BTreeSet};

use pyllm_scheduler::{Config, Events, KvEvent, Request, Snapshot, Stats, Tier};

use crate::device::Reach;
use crate::names::{self, Name};

pub(super) struct Subscriber {
    is_served: bool,
    /// Whether it knows all contents; contents that survived a loss have no events before their tokens are known.
    is_whole: bool,
    incarnation: u64,
    next: u64,
    known: BTreeSet<(Name, u32, Tier)>, // with the group in the middle
    tokens: BTreeMap<Name, Vec<i32>>,   // of all blocks there have been
}

impl Subscriber {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            is_served: config.enable_kv_cache_events,
            is_whole: true,
            incarnation: config.incarnation,
            next: 0,
            known: BTreeSet::new(),
            tokens: BTreeMap::new(),
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn hear(&mut self, events: &Events, config: &Config) {
        assert_eq!((events.incarnation, events.first), (self.incarnation, self.next));
        assert!(self.is_served || events.events.is_empty());
        self.next += events.events.len() as u64;
        for event in &events.events {
            match event {
                KvEvent::Stored { hash, parent, tokens, tier, group, .. } => {
                    let name = *hash.as_bytes();
                    assert_eq!(tokens.len(), config.block_size as usize, "full blocks alone have names");
                    if let Some(parent) = parent {
                        assert_eq!(name, names::child(*parent.as_bytes(), tokens), "the name is of the tokens");
                        let may_be_new = config.kv_groups.get(*group as usize).is_none_or(|of| of.window.is_some());
                        let is_named = self.tokens.contains_key(parent.as_bytes());
                        assert!(is_named || may_be_new, "the block before has been named");
                    }
                    assert!(self.known.insert((name, *group, *tier)), "what is stored was not there");
                    let first = self.tokens.entry(name).or_insert_with(|| tokens.clone());
                    assert_eq!(first, tokens);
                }
                KvEvent::Removed { hash, tier, group } => {
                    assert!(self.known.remove(&(*hash.as_bytes(), *group, *tier)), "what is removed was there");
                }
                KvEvent::Cleared => {
                    self.known.clear();
                    self.is_whole = true;
                }
            }
        }
    }

    pub(super) fn misses_some(&mut self) {
        self.is_whole = false;
    }

    /// Compares its state with a snapshot.
    pub(super) fn compare(&self, snapshot: &Snapshot, stats: &Stats, config: &Config) {
        assert_eq!((snapshot.incarnation, snapshot.next), (self.incarnation, self.next));
        let mut told = BTreeSet::new();
        for event in &snapshot.events {
            let KvEvent::Stored { hash, tier, tokens, group, .. } = event else { panic!("{event:?} is in a snapshot") };
            assert_eq!(self.tokens.get(hash.as_bytes()), Some(tokens));
            told.insert((*hash.as_bytes(), *group, *tier));
        }
        assert_eq!(told, self.known);
        if self.is_served {
            let is_state = |group| group as usize == config.kv_groups.len();
            let count = |tier, states| {
                self.known.iter().filter(|&&(_, group, of)| of == tier && is_state(group) == states).count() as u64
            };
            for (states, on_device, on_host) in [
                (false, stats.num_cached_blocks, stats.num_cached_host_blocks),
                (true, stats.num_cached_states, stats.num_cached_host_states),
            ] {
                let counted = (count(Tier::Device, states), count(Tier::Host, states));
                assert_eq!(counted.0, on_device);
                assert!(counted.1 <= on_host);
                assert!(!self.is_whole || counted.1 == on_host);
            }
        }
    }

    pub(super) fn is_on_device(&self, name: Name, group: u32) -> bool {
        self.known.contains(&(name, group, Tier::Device))
    }

    /// Tokens of a request that are cached, except its last; none if there are no events.
    pub(super) fn predict(&self, request: &Request, config: &Config) -> Option<u64> {
        let block_size = config.block_size as usize;
        let most = (request.prompt.len() - 1) / block_size;
        let chain = names::chain(request, config);
        let is_known = |name: Name, group: u32| {
            [Tier::Device, Tier::Host].iter().any(|&tier| self.known.contains(&(name, group, tier)))
        };
        // All blocks that the next token reads are cached in every group.
        let is_start = |length: &usize| {
            let is_checkpoint = |last: usize| is_known(chain[last], config.kv_groups.len() as u32);
            let has_state = config.num_states == 0 || length.checked_sub(1).is_none_or(is_checkpoint);
            let mut groups = (0..).zip(&config.kv_groups);
            has_state
                && groups.all(|(group, of)| {
                    (of.first_read(length * block_size) / block_size..*length)
                        .all(|index| is_known(chain[index], group))
                })
        };
        (self.is_served && self.is_whole).then(|| ((0..=most).rev().find(is_start).unwrap_or(0) * block_size) as u64)
    }
}
