//! The two tiers of one kind of contents, blocks or states: the device, and a host pool. The host keeps contents that the
//! device evicts, serves as swap space, and survives the loss of the device. Knows neither sequences nor the kind.

use crate::block_hash::{Content, GroupHash};
use crate::ids::{Block, StepId};
use crate::kv::cache::content_logs::ContentLogs;
use crate::kv::cache::events::Tier;
use crate::kv::cache::pending_swaps::{PendingSwaps, Swap};
use crate::kv::cache::prefix::{Name, Saved};
use crate::kv::cache::tier_cache::{Evicted, TierCache};

pub(crate) struct Tiers<D, H> {
    pub(crate) device: TierCache<D>,
    pub(crate) host: TierCache<H>,
    swaps: PendingSwaps<D, H>,
    released: Vec<D>, // each with a reference until the plan ends
}

impl<D: Block, H: Block> Tiers<D, H> {
    pub(crate) fn new(num_on_device: u32, num_on_host: u32) -> Self {
        Self {
            device: TierCache::new(num_on_device),
            host: TierCache::new(num_on_host),
            swaps: PendingSwaps::new(),
            released: Vec::new(),
        }
    }

    /// Whether a tier has these contents, or a step in flight writes them.
    pub(crate) fn is_known(&self, key: GroupHash) -> bool {
        self.device.get(key).is_some() || self.host.get(key).is_some()
    }

    /// A block of the device to write to, if one is free. Its old contents are written back.
    pub(crate) fn allocate(&mut self, in_window: bool, logs: &mut ContentLogs) -> Option<D> {
        let (block, evicted) = self.device.allocate(in_window)?;
        if let Some(evicted) = evicted {
            if self.host.num_blocks() > 0 {
                self.write_back(block, &evicted, logs);
            }
            let key = evicted.name.key;
            logs.removed(key, Tier::Device, || self.is_known(key));
        }
        Some(block)
    }

    /// Names a block in use of the device by its contents for a group, which step `filled` writes. False: another block
    /// has equal contents and keeps the name.
    pub(crate) fn store(
        &mut self,
        block: D,
        group: u32,
        content: &Content<'_>,
        filled: StepId,
        logs: &mut ContentLogs,
    ) -> bool {
        let key = content.hash.of(group);
        let on_host = self.host.get(key).and_then(|host| self.host.name(host));
        let saved = on_host.map_or(Saved::Nothing, |name| name.saved);
        let is_first = self.device.store(block, Name { key, index: content.index, filled, saved });
        if is_first {
            logs.stored(group, content);
        }
        is_first
    }

    /// Drops a reference to a block of the device that the plan in progress reads or writes. It counts until `end_plan`:
    /// swaps come first in a plan and loads run beside it, so they would copy the block, or write it, too early.
    pub(crate) fn free_after_plan(&mut self, block: D) {
        self.released.push(block);
    }

    /// Forgets the contents of a block of the device.
    pub(crate) fn forget_block(&mut self, block: D, logs: &mut ContentLogs) {
        if let Some(name) = self.device.forget_block(block) {
            logs.removed(name.key, Tier::Device, || self.is_known(name.key));
        }
    }

    /// References to a block of the host, without those of the plan in progress.
    pub(crate) fn references_host(&self, host: H) -> u32 {
        self.host.references(host) - self.swaps.references(host)
    }

    /// Drops a reference to each block of the host, the last first.
    pub(crate) fn free_host(&mut self, blocks: &mut Vec<H>) {
        for host in blocks.drain(..).rev() {
            self.host.free(host);
        }
    }

    /// Assigns a block of the host to each of the device, with a reference to each; none if the host has no room for
    /// all. Contents already on the host are not copied. The caller keeps the device's blocks, which the plan in progress
    /// must not write.
    pub(crate) fn swap_out(&mut self, blocks: &[D], logs: &mut ContentLogs) -> Option<Vec<H>> {
        let known: Vec<_> = blocks.iter().map(|&block| self.host_copy(block)).collect();
        let is_in_use = |host: &&H| self.host.references(**host) > 0;
        let num_in_use = known.iter().flatten().filter(is_in_use).count();
        if known.len() - num_in_use > self.host.num_free() as usize {
            return None;
        }
        for &host in known.iter().flatten() {
            self.host.hold(host);
        }
        blocks.iter().zip(known).map(|(&block, host)| host.or_else(|| self.copy_out(block, logs))).collect()
    }

    /// Assigns a block of the device for the contents of one of the host, without a name until `store`; none: no block
    /// is free. The plan keeps a reference to the host's until `end_plan`, so that no copy overwrites it before it is
    /// read.
    pub(crate) fn swap_in(&mut self, host: H, in_window: bool, logs: &mut ContentLogs) -> Option<D> {
        self.host.hold(host);
        let Some(block) = self.allocate(in_window, logs) else {
            self.host.free(host);
            return None;
        };
        self.device.raise_hits(block, self.host.hits(host));
        self.swaps.push_in(host, block);
        Some(block)
    }

    pub(crate) fn has_swaps(&self) -> bool {
        !self.swaps.is_empty()
    }

    /// The swaps, all outs before all ins; no two write to one block. An out has the name of its contents, if any.
    pub(crate) fn drain_swaps(&mut self) -> impl Iterator<Item = (Swap<D, H>, Option<Name>)> {
        let host = &self.host;
        self.swaps.drain().map(move |swap| match swap {
            Swap::Out { host: block, .. } => (swap, host.name(block)),
            Swap::In { .. } => (swap, None),
        })
    }

    /// Drops the plan's references, once its swaps are drained.
    pub(crate) fn end_plan(&mut self) {
        for block in self.released.drain(..) {
            self.device.free(block);
        }
        for host in self.swaps.release() {
            self.host.free(host);
        }
    }

    /// Restores the name of a block of the host, unless another has it.
    pub(crate) fn restore(&mut self, host: H, name: Name, logs: &mut ContentLogs) {
        self.host.hold(host);
        if self.host.store(host, name) {
            logs.restored(name.key);
        }
        self.host.free(host);
    }

    /// Forgets the contents of all blocks on both tiers; blocks in use stay in use. The caller logs it.
    pub(crate) fn forget(&mut self) {
        self.device.forget();
        self.host.forget();
    }

    /// All known contents.
    pub(crate) fn known(&self) -> impl Iterator<Item = (GroupHash, Tier)> {
        let device = self.device.known().map(|(_, name)| (name.key, Tier::Device));
        device.chain(self.host.known().map(|(_, name)| (name.key, Tier::Host)))
    }

    pub(crate) fn num_blocks(&self) -> usize {
        (self.device.num_blocks() + self.host.num_blocks()) as usize
    }

    /// The contents of a block, counted through both tiers. None: it has no name, or the device's has it, too.
    pub(crate) fn name_at(&self, number: usize) -> Option<Name> {
        match (number as u32).checked_sub(self.device.num_blocks()) {
            None => self.device.name(D::new(number as u32)),
            Some(host) => self.host.name(H::new(host)).filter(|name| self.device.get(name.key).is_none()),
        }
    }

    /// See `Scheduler::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.device.audit()?;
        self.host.audit()?;
        let unheld = |&host: &H| self.host.references(host) < self.swaps.references(host);
        match (0..self.host.num_blocks()).map(H::new).find(unheld) {
            Some(host) => Err(format!("host block {host} is part of a swap and may be overwritten before")),
            None => Ok(()),
        }
    }

    /// Keeps evicted contents of the device on the host, if there is a free block.
    fn write_back(&mut self, block: D, evicted: &Evicted, logs: &mut ContentLogs) {
        let &Evicted { name, hits, is_superseded } = evicted;
        if let Some(host) = self.host.get(name.key) {
            self.host.refresh(host, hits);
            self.host.mark_saved(host, name.on_host().saved);
        } else if let Some(host) = self.allocate_host(logs) {
            self.swaps.push_out(block, host);
            self.store_host(host, name, hits, logs);
            if is_superseded {
                self.host.supersede(host);
            }
        }
    }

    /// The block of the host that has, or will have, the contents of one of the device.
    fn host_copy(&self, block: D) -> Option<H> {
        let named = self.device.name(block).and_then(|name| self.host.get(name.key));
        named.or_else(|| self.swaps.source(block))
    }

    /// Queues the copy of a block to a new one of the host, of which the caller has one reference.
    fn copy_out(&mut self, block: D, logs: &mut ContentLogs) -> Option<H> {
        let host = self.allocate_host(logs)?;
        self.host.hold(host);
        self.swaps.push_out(block, host);
        if let Some(name) = self.device.name(block) {
            self.store_host(host, name, self.device.hits(block), logs);
        }
        Some(host)
    }

    fn allocate_host(&mut self, logs: &mut ContentLogs) -> Option<H> {
        let (host, evicted) = self.host.allocate(false)?;
        if let Some(Evicted { name, .. }) = evicted {
            logs.removed(name.key, Tier::Host, || self.is_known(name.key));
        }
        Some(host)
    }

    fn store_host(&mut self, host: H, name: Name, hits: u8, logs: &mut ContentLogs) {
        self.host.store(host, name.on_host());
        self.host.raise_hits(host, hits);
        logs.copied(name.key);
    }
}
