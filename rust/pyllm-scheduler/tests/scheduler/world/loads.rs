//! Loads from an external store: offered, written to the device's blocks or not, and reported.

use pyllm_scheduler::{Error, LoadId, StepId};

use super::World;
use crate::calls::Offer;
use crate::device::{Loaded, Reach};
use crate::oracle::Prefix;

/// A load that the scheduler has started.
pub(super) struct Pending {
    pub(super) loaded: Loaded,
    pub(super) step: Option<StepId>,
    has_begun: bool,
}

impl Pending {
    fn num_tokens(&self) -> usize {
        self.loaded.tokens.len() - self.loaded.first_token
    }

    fn fails(&self) -> bool {
        self.loaded.num_right < self.num_tokens()
    }
}

impl World {
    pub(super) fn offer_load(&mut self, pick: usize, offer: Offer) {
        if let Some(index) = self.pick(pick) {
            self.offer(index, offer);
        }
    }

    /// Offers a load to a request whose deltas have all been taken.
    pub(super) fn offer(&mut self, index: usize, Offer { num_tokens, asynchronous, quarters }: Offer) {
        let (client, id) = self.name(index);
        let result = self.scheduler.offer_load(client, id, num_tokens, asynchronous);
        let known = &mut self.requests[index];
        match result {
            Ok(()) => {
                assert!(self.config.enable_prefix_caching && known.is_live());
                known.offer = Some(quarters);
            }
            Err(Error::Disabled { .. }) => assert!(!self.config.enable_prefix_caching),
            Err(Error::UnknownRequest { .. }) => assert!(!known.is_live()),
            Err(Error::TooLate { .. }) => assert!(self.num_schedules > known.num_schedules),
            Err(other) => panic!("{other}"),
        }
    }

    /// Takes the loads that the scheduler has started.
    pub(super) fn take_loads(&mut self) {
        for load in self.scheduler.take_loads() {
            let known = &self.requests[load.request.0 as usize];
            assert!(known.request.client == load.client && !known.is_held() && !known.is_dropped);
            let live = known.samples.iter().find(|sample| !sample.is_finished).expect("it goes on");
            let end = (load.first_token + load.num_tokens) as usize;
            let num_prompt = known.request.prompt.len();
            let tokens = known.request.prompt.iter().chain(&live.expected).take(end);
            let quarters = known.offer.expect("it was offered");
            let loaded = Loaded {
                id: load.id,
                blocks: load
                    .blocks
                    .iter()
                    .take(self.config.kv_groups.len())
                    .map(|blocks| blocks.iter().map(|block| block.0 as usize).collect())
                    .collect(),
                first_token: load.first_token as usize,
                tokens: tokens.copied().collect(),
                state: load.blocks.get(self.config.kv_groups.len()).map(|state| {
                    assert_eq!(state.len(), 1, "the state after the last token");
                    (state[0].0 - self.config.num_blocks) as usize
                }),
                root: Prefix::empty(&known.request, &self.config.weights_version),
                num_right: load.num_tokens as usize * quarters / 4,
            };
            let has_states = self.config.num_states > 0;
            assert_eq!(load.blocks.len(), self.config.kv_groups.len() + usize::from(has_states));
            self.saw("loads of states", u64::from(has_states));
            let block_size = self.config.block_size as usize;
            for (blocks, group) in load.blocks.iter().zip(&self.config.kv_groups) {
                let num_read = end / block_size - group.first_read(end) / block_size;
                let expected = num_read.min(load.num_tokens as usize / block_size);
                assert_eq!(blocks.len(), expected, "of a window what is read after it is loaded");
            }
            assert!(loaded.tokens.len() == end && load.num_tokens > 0 && end % block_size == 0);
            let what = if load.step.is_none() { "loads that requests wait for" } else { "loads within a step" };
            self.saw(what, 1);
            self.saw("loads of outputs", u64::from(end > num_prompt));
            self.loads.insert(load.id, Pending { loaded, step: load.step, has_begun: false });
        }
    }

    /// Begins asynchronous loads, once the plan that started them is executed, as it may swap out their blocks. Until a
    /// load ends, the contents of its blocks are neither the old nor the new ones.
    pub(super) fn begin_loads(&mut self) {
        for pending in self.loads.values_mut().filter(|pending| pending.step.is_none() && !pending.has_begun) {
            pending.has_begun = true;
            self.device.load(&Loaded { num_right: 0, ..pending.loaded.clone() });
        }
    }

    pub(super) fn loads_of(&self, step: StepId) -> Vec<Loaded> {
        let pending = self.loads.values().filter(|pending| pending.step == Some(step));
        pending.map(|pending| pending.loaded.clone()).collect()
    }

    pub(super) fn finish_load(&mut self, pick: usize) {
        let Some(place) = pick.checked_rem(self.loads.len()) else { return };
        let load = *self.loads.keys().nth(place).expect("there are as many");
        self.report(load);
    }

    /// Reports the failed loads of a step before its commit.
    pub(super) fn report_failures(&mut self, step: StepId) {
        let of_step = self.loads.iter().filter(|(_, pending)| pending.step == Some(step) && pending.fails());
        for load in of_step.map(|(&load, _)| load).collect::<Vec<_>>() {
            self.report(load);
        }
    }

    fn report(&mut self, load: LoadId) {
        let Some(pending) = self.loads.remove(&load) else { return };
        if pending.step.is_none() {
            self.device.load(&pending.loaded);
        }
        let num_right = pending.loaded.num_right as u32;
        let num_preemptions = self.scheduler.stats().num_preemptions;
        assert_eq!(self.scheduler.finish_load(load, num_right), Ok(()));
        assert_eq!(self.scheduler.stats().num_preemptions, num_preemptions, "what failed has not taken any place");
        assert_eq!(self.scheduler.finish_load(load, num_right), Err(Error::UnknownLoad { load }));
    }
}
