//! Admission: the first in the queue runs when a slot is free and all its tokens, not only the next chunk, fit in the
//! free blocks. It starts after what the prefix cache holds of it.

use crate::arena::Key;
use crate::ids::BlockId;
use crate::sequence::{Sequence, State};

use super::Scheduler;
use super::planning::Planning;

impl Scheduler {
    /// Admits from the queue, in its order, while budget, slots and blocks last.
    pub(super) fn admit(&mut self, planning: &mut Planning) {
        while planning.budget > 0 {
            let Some((&queue_key, &key)) = self.waiting.first_key_value() else { break };
            let Some(&slot) = self.free_slots.last() else { break };
            // Nothing overtakes a sequence whose last token is on its way.
            let sequence = &self.sequences[key];
            if sequence.num_in_flight > 0 || sequence.num_samples > planning.samples || !self.find_cached(key, planning)
            {
                break;
            }
            self.waiting.remove(&queue_key);
            self.free_slots.pop();
            self.running.push(key);

            let sequence = &mut self.sequences[key];
            let live = &self.requests[sequence.request];
            sequence.state = State::Running(slot);
            self.draft.initialise_slot(slot, &live.request.sampling);
            for (index, &block) in self.found.iter().enumerate() {
                self.cache.share(block);
                self.draft.change_table(slot, index, block);
            }
            sequence.blocks.extend_from_slice(&self.found);
            sequence.num_stored = self.found.len();
            sequence.num_computed = self.found.len() as u32 * self.config.block_size;
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(sequence.num_computed.min(sequence.num_prompt_tokens));
                if self.config.enable_prefix_caching {
                    self.counters.prefix_queries += u64::from(sequence.num_known());
                    self.counters.prefix_hits += u64::from(sequence.num_computed);
                }
            }
            let num_tokens = (sequence.num_known() - sequence.num_computed).min(planning.budget);
            self.plan_row(key, num_tokens, planning);
        }
    }

    /// Looks up what is cached of a waiting sequence, into `found`. False: the rest does not fit now.
    fn find_cached(&mut self, key: Key<Sequence>, planning: &Planning) -> bool {
        let committed = self.oldest_step();
        let sequence = &mut self.sequences[key];
        let live = &self.requests[sequence.request];
        let num_known = sequence.num_known();
        self.found.clear();
        if self.config.enable_prefix_caching {
            // The last token is computed in any case, since its logits are wanted.
            let most = ((num_known - 1) / self.config.block_size) as usize;
            sequence.hash_blocks(live, self.config.block_size, most, &mut self.message);
            let hashes = sequence.hashes(live).take(most);
            self.cache.find_chain(hashes, planning.step, committed, &mut self.found);
        }
        let is_free = |block: &&BlockId| self.cache.references(**block) == 0;
        let from_free =
            self.config.blocks_for(num_known) as usize - self.found.len() + self.found.iter().filter(is_free).count();
        from_free <= self.cache.num_free() as usize
    }
}
