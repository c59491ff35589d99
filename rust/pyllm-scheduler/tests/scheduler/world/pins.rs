//! Pins and resets of the prefix cache.

use std::collections::BTreeSet;

use pyllm_scheduler::{Error, Stats};

use super::{World, requests};
use crate::calls::Prompt;
use crate::device::Reach;
use crate::names::{self, Name};

impl World {
    pub(super) fn pin(&mut self, name: u64, prompt: Prompt) {
        let of = requests::request(prompt);
        let chain = names::chain(&of, &self.config);
        let block_size = self.config.block_size as usize;
        // In a window, only the blocks that the next token reads.
        let wished = self.config.kv_groups.iter().enumerate().flat_map(|(group, reach)| {
            let first = reach.first_read(chain.len() * block_size) / block_size;
            chain[first..].iter().map(move |&name| (name, group as u32))
        });
        let wished: Vec<_> = wished.collect();
        let (num_pinned, quota) = (self.wishes().len(), self.config.max_pinned_blocks);
        let num_all = self.wishes().into_iter().chain(wished.iter().copied()).collect::<BTreeSet<_>>().len();
        let is_there = self.pins.contains_key(&name);
        match self.scheduler.pin(name, &of) {
            Ok(num_blocks) => {
                assert!(self.config.enable_prefix_caching && !is_there && num_all <= quota as usize);
                assert_eq!(num_blocks as usize, chain.len());
                self.saw("pins", 1);
                self.pins.insert(name, wished);
            }
            Err(Error::Disabled { .. }) => assert!(!self.config.enable_prefix_caching),
            Err(Error::DuplicatePin { .. }) => assert!(is_there),
            Err(Error::Request(_)) => assert!(chain.is_empty()),
            Err(Error::PinQuota { asked, pinned, num_pins, .. }) => {
                assert_eq!((asked as usize, pinned as usize), (num_all - num_pinned, num_pinned));
                assert_eq!(num_pins as usize, self.pins.len());
                assert!(num_all > quota as usize || num_pins >= quota);
                self.saw("pins beyond the quota", 1);
            }
            Err(Error::PinnedStates { num_pins, quota }) => {
                assert!(self.config.num_states > 0 && num_pins == quota && quota <= self.config.num_states - 2);
                assert_eq!(num_pins as usize, self.pins.len());
                self.saw("pins beyond the states", 1);
            }
            Err(other) => panic!("{other}"),
        }
    }

    pub(super) fn unpin(&mut self, name: u64) {
        assert_eq!(self.scheduler.unpin(name), self.pins.remove(&name).is_some());
    }

    pub(super) fn reset_prefix_cache(&mut self) {
        self.scheduler.reset_prefix_cache();
        self.device.forget_host_names();
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_cached_blocks, stats.num_cached_host_blocks, stats.num_pinned_blocks), (0, 0, 0));
    }

    /// Checks that pins hold exactly those of their contents that are on the device.
    pub(super) fn audit_pins(&mut self, stats: &Stats) {
        let wishes = self.wishes();
        assert!(stats.num_pinned_blocks <= wishes.len() as u64 && stats.num_pinned_blocks <= stats.num_used_blocks);
        if self.config.enable_kv_cache_events {
            let held = wishes.iter().filter(|&&(name, group)| self.subscriber.is_on_device(name, group)).count();
            assert_eq!(stats.num_pinned_blocks, held as u64);
            self.saw("pinned blocks", held as u64);
            let group = self.config.kv_groups.len() as u32;
            let has_checkpoint =
                |pin: &&Vec<(Name, u32)>| pin.iter().any(|&(name, _)| self.subscriber.is_on_device(name, group));
            let held = self.pins.values().filter(has_checkpoint).count() as u64;
            // Of a prefix before its window the model knows no names, and a checkpoint there is held, too.
            let held = held..=self.pins.len() as u64;
            assert!(held.contains(&stats.num_pinned_states), "each pin holds a checkpoint of its prefix");
            self.saw("pinned states", stats.num_pinned_states);
        }
    }

    fn wishes(&self) -> BTreeSet<(Name, u32)> {
        self.pins.values().flatten().copied().collect()
    }
}
