//! Copies between the device and the host in the next plan: outs to the host, ins from it. The worker does the outs,
//! then the ins, before every other access to blocks. So an out reads the contents that earlier steps wrote, and an in
//! may read a host block that an out of its plan wrote. `scheduler/preemption.rs` decides on swaps. Knows no contents.

use crate::ids::Block;

/// One copy of a whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swap<D, H> {
    Out { device: D, host: H },
    In { host: H, device: D },
}

pub(crate) struct PendingSwaps<D, H> {
    outs: Vec<(D, H)>,
    ins: Vec<(H, D)>,
    held: Vec<H>, // once for each swap of the plan, drained or not
}

impl<D: Block, H: Block> PendingSwaps<D, H> {
    pub(crate) fn new() -> Self {
        Self { outs: Vec::new(), ins: Vec::new(), held: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outs.is_empty() && self.ins.is_empty()
    }

    /// Adds a swap to the host. It takes over one of the caller's references to the host block until `release`.
    pub(crate) fn push_out(&mut self, device: D, host: H) {
        self.outs.push((device, host));
        self.held.push(host);
    }

    /// Adds a swap from the host. It takes over one of the caller's references to the host block until `release`.
    pub(crate) fn push_in(&mut self, host: H, device: D) {
        self.ins.push((host, device));
        self.held.push(host);
    }

    /// The host block that a pending swap copies to this device block.
    pub(crate) fn source(&self, device: D) -> Option<H> {
        self.ins.iter().find(|swap| swap.1 == device).map(|swap| swap.0)
    }

    /// The outs, then the ins, each ordered by host block: a worker copies a run of host blocks at once.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Swap<D, H>> {
        self.outs.sort_unstable_by_key(|swap| swap.1.number());
        self.ins.sort_unstable_by_key(|swap| (swap.0.number(), swap.1.number()));
        let outs = self.outs.drain(..).map(|(device, host)| Swap::Out { device, host });
        outs.chain(self.ins.drain(..).map(|(host, device)| Swap::In { host, device }))
    }

    /// The plan's references to a host block.
    pub(crate) fn references(&self, host: H) -> u32 {
        self.held.iter().filter(|&&held| held == host).count() as u32
    }

    /// Ends the plan: returns the host blocks whose references the caller drops.
    pub(crate) fn release(&mut self) -> impl Iterator<Item = H> {
        self.held.drain(..)
    }
}
