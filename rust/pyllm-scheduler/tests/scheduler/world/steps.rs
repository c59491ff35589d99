//! Steps: planned, executed at once, and committed later. Results of steps in flight exist, but are not used yet.

use std::collections::BTreeSet;

use pyllm_scheduler::{
    ClientId, Embeddings, Error, KvGroup, Logprobs, Pause, Plan, PolicyName, Pooling, Stats, StepId, uniform,
};

use super::World;
use super::beams::{check_beam, likeliest};
use super::logprobs::Columns;
use super::model::{Requests, known};
use super::requests::KnownSample;
use crate::calls::Positions;
use crate::device::{Model, Reach, Row};
use crate::oracle::{self, mix};
use crate::sections::Sections;

pub(super) struct InFlight {
    pub(super) step: StepId,
    rows: Vec<Sampled>,
}

/// The result of a row, and the number of positions that a worker would return.
struct Sampled {
    tokens: Vec<i32>,
    num_drafts: usize,
    num_accepted: usize,
    is_stateful: bool,
    told: Vec<i32>, // prompt tokens with log-probabilities
    logprobs: bool,
    /// The candidates of a beam.
    likeliest: Vec<(i32, f32)>,
    embedding: Vec<f32>,
}

impl InFlight {
    /// The arguments of `commit`.
    pub(super) fn result(&self, positions: Positions) -> (Vec<i32>, Vec<i32>, Option<Logprobs>) {
        let (mut starts, mut tokens, mut logprobs) = (vec![0], Vec::new(), Columns::new());
        for row in &self.rows {
            let length = match positions {
                _ if row.is_stateful => row.tokens.len(),
                Positions::Accepted if row.num_drafts > 0 => row.num_accepted + 1,
                Positions::First if row.num_drafts > 0 => 1,
                _ => row.tokens.len(),
            };
            tokens.extend_from_slice(&row.tokens[..length]);
            starts.push(tokens.len() as i32);
            if row.likeliest.is_empty() {
                logprobs.push(&row.told, &row.tokens[..length], row.logprobs);
            } else {
                logprobs.push_beam(&row.tokens, &row.likeliest);
            }
        }
        (starts, tokens, logprobs.finish())
    }

    /// The embeddings for `commit`; none without a pooling row.
    pub(super) fn embeddings(&self) -> Option<Embeddings> {
        let ends = self.rows.iter().scan(0, |end, row| {
            *end += row.embedding.len() as i32;
            Some(*end)
        });
        let values: Vec<_> = self.rows.iter().flat_map(|row| &row.embedding).copied().collect();
        let starts = [0].into_iter().chain(ends).collect();
        (!values.is_empty()).then_some(Embeddings { starts, values })
    }

    pub(super) fn has_drafts(&self) -> bool {
        self.rows.iter().any(|row| row.num_drafts > 0)
    }

    pub(super) fn samples(&self) -> bool {
        self.rows.iter().any(|row| !row.tokens.is_empty())
    }
}

impl World {
    pub(super) fn schedule(&mut self, after: f64) {
        if self.in_flight.len() == self.depth {
            return;
        }
        self.now += after;
        let num_expired = self.expire();
        self.saw("deadlines", num_expired);
        let before = self.scheduler.stats();
        let plan = self.scheduler.schedule(self.now).expect("time goes on");
        self.num_schedules += 1;
        let stats = self.scheduler.stats();
        assert_eq!(stats.num_expired, before.num_expired + num_expired);
        self.take_loads();
        if let Some(plan) = &plan {
            assert_ne!(self.config.pause, Pause::All, "a pause has no plan");
            self.execute(plan, &before);
        } else {
            let num_able = match self.config.pause {
                Pause::None => stats.num_running + stats.num_waiting,
                Pause::New => stats.num_running,
                Pause::All => 0,
            };
            let may_run = num_able > 0 && self.loads.is_empty() && self.saves.is_empty();
            assert!(!self.in_flight.is_empty() || !may_run, "nothing is in flight, and yet nothing runs");
        }
        self.begin_loads();
        self.check_decision(plan.as_ref(), &before);
        self.check_reasons();
    }

    fn execute(&mut self, plan: &Plan, before: &Stats) {
        let sections = Sections::new(plan);
        let loads = self.loads_of(plan.step);
        let model = Requests {
            all: &self.requests,
            weights_version: &self.config.weights_version,
            mood: mix(self.moods ^ plan.step.0),
        };
        let saved: BTreeSet<_> = self.saves.values().map(|saving| saving.block.0 as usize).collect();
        assert!(sections.written_blocks(self.config.block_size).all(|block| !saved.contains(&block)));
        let begins = |&number: &u32| sections.slot_inits().iter().any(|init| model.adapter(init.1) == number);
        let loaded = sections.pairs("adapter_loads").into_iter().map(|(slot, number)| (slot, number as u32));
        let (loaded, unused): (Vec<_>, Vec<_>) = loaded.partition(|(_, number)| begins(number));
        assert!(unused.is_empty(), "an adapter is loaded for a sequence that begins to run");
        let evicted = loaded.iter().filter(|&&(slot, _)| self.device.adapters()[slot] > 0).count();
        let rows = self.device.execute(&sections, &loads, &model);
        *self.seen.entry("adapters evicted").or_default() += evicted as u64;
        *self.seen.entry("adapters loaded").or_default() += loaded.len() as u64;
        for row in rows.iter().filter(|row| !row.is_stale) {
            self.check_row(row);
        }
        self.note_moods(&rows, &sections);
        self.check_limits(plan, &rows);
        self.check_pipeline(&sections);
        self.check_turn(plan, &rows);
        self.check_hits(&rows, before);
        self.note(&rows, &sections, before);
        let rows = rows.into_iter().map(|row| {
            let drafts = &row.context[row.context.len() - row.num_drafts..];
            let num_accepted = drafts.iter().zip(&row.sampled).take_while(|(draft, token)| draft == token).count();
            let request = known(&self.requests, &row.request);
            let pools = request.request.pooling != Pooling::None && !row.sampled.is_empty();
            Sampled {
                num_drafts: row.num_drafts,
                num_accepted,
                is_stateful: row.is_stateful,
                logprobs: request.logprobs,
                likeliest: likeliest(&request.request, &row),
                embedding: if pools { row.prefix.embedding().to_vec() } else { Vec::new() },
                tokens: row.sampled,
                told: row.told,
            }
        });
        let rows = rows.collect();
        self.in_flight.push_back(InFlight { step: plan.step, rows });
    }

    /// Checks that a row reads the start of one of its request's samples, and uses that sample's random numbers.
    fn check_row(&mut self, row: &Row) {
        if let Some(load) = row.spoilt {
            assert!(self.loads.contains_key(&load), "a row reads what a load failed to bring, and that is known");
            self.saw("rows on failed loads", 1);
            return;
        }
        let known = known(&self.requests, &row.request);
        assert!(!known.is_held() && !known.is_dropped);
        if known.request.beam_width > 0 {
            check_beam(row, known);
            return;
        }
        let request = &known.request;
        let context = &row.context[..row.context.len() - row.num_drafts];
        let first = row.context.len() - row.num_tokens;
        assert!(
            request.pooling != Pooling::Mean || first == 0 || first == known.num_added.get(),
            "a whole prompt is computed from its beginning, without a break"
        );
        known.num_added.set(row.context.len());
        let reads = |sample: &KnownSample| {
            let whole = || request.prompt.iter().chain(&sample.expected);
            // Steps planned before a stop token was known go past it; their results are dropped.
            context.len() < whole().count() + self.depth && context.iter().zip(whole()).all(|(a, b)| a == b)
        };
        let longest = oracle::longest(request, &self.config);
        assert!(row.context.len() < longest as usize, "the last token that there can be is never computed");
        let is_live = |sample: &KnownSample| !sample.is_finished && sample.ended.is_none();
        let samples = known.samples.iter().enumerate().filter(|(_, sample)| is_live(sample) && reads(sample));
        let samples: Vec<u32> = samples.map(|(index, _)| index as u32).collect();
        assert!(!samples.is_empty(), "a row reads what no live sample of its request has: {context:?}");
        let position = (context.len() as u32).saturating_sub(request.prompt.len() as u32);
        let expected = |offset: u32, sample: u32| uniform(request.seed, position + offset, sample).to_bits();
        let numbers: Vec<u32> = row.uniforms.iter().map(|uniform| uniform.to_bits()).collect();
        if numbers.len() > 1 && row.num_drafts == 0 {
            assert_eq!(numbers, (0..request.n).map(|sample| expected(0, sample)).collect::<Vec<_>>());
            return;
        }
        let is_drawn_by = |&sample: &u32| numbers.iter().zip(0..).all(|(&one, offset)| one == expected(offset, sample));
        assert!(samples.iter().any(is_drawn_by), "the numbers of another sample");
    }

    fn check_limits(&mut self, plan: &Plan, rows: &[Row]) {
        let config = &self.config;
        assert!(plan.num_tokens() <= config.max_num_batched_tokens, "the budget is kept");
        let slots: BTreeSet<_> = Sections::new(plan).ints("slots").iter().copied().collect();
        assert!(slots.len() <= config.max_num_seqs as usize, "a sequence has a slot");
        assert!(config.num_states > 0 || slots.len() == rows.len(), "and one row");
        let num_more = (rows.len() - slots.len()) as u64;
        let num_samples: usize = rows.iter().map(|row| row.uniforms.len()).sum();
        assert!(num_samples <= 2 * config.max_num_seqs as usize, "a step samples so many positions at most");
        let cap = config.long_prefill_token_threshold as usize;
        let is_within = |row: &Row| cap == 0 || row.num_tokens <= cap || row.num_drafts > 0;
        assert!(rows.iter().all(is_within), "long prompts come in pieces");
        let request = |row: &Row| &known(&self.requests, &row.request).request;
        let of_prompt = |row: &Row| match request(row).prompt.len().checked_sub(row.context.len()) {
            Some(left) if request(row).prompt_logprobs => row.num_tokens - usize::from(left == 0),
            _ => 0,
        };
        let scored = |row: &Row| row.uniforms.len() + of_prompt(row);
        let num_logprobs: u64 = rows.iter().map(|row| scored(row) as u64 * u64::from(request(row).num_logprobs)).sum();
        assert!(num_logprobs <= 6 * config.most_logprobs(), "a step carries so many log-probabilities at most");

        let mut named: BTreeSet<usize> = rows.iter().flat_map(|row| &row.blocks).copied().collect();
        named.extend(self.loads.values().flat_map(|pending| pending.loaded.blocks.iter().flatten()));
        let stats = self.scheduler.stats();
        assert!(named.len() as u64 <= stats.num_used_blocks, "{} blocks are named: {stats:?}", named.len());
        self.saw("several rows of a sequence", num_more);
    }

    /// Checks that no row of a pipeline needs a token in flight. `audit` checks the rest.
    fn check_pipeline(&mut self, sections: &Sections) {
        if self.config.pipeline_parallel_size > 1 {
            assert!(!sections.ints("tokens").contains(&-1), "a row is planned behind one in flight");
            self.saw("rows of a pipeline", sections.ints("slots").len() as u64);
        }
    }

    /// Checks that an otherwise idle scheduler finds the cached tokens that a subscriber of its events predicts.
    fn check_hits(&mut self, rows: &[Row], before: &Stats) {
        let stats = self.scheduler.stats();
        let was_still = before.num_running + before.num_loading == 0 && before.num_waiting == 1;
        let [row] = rows else { return };
        let known = known(&self.requests, &row.request);
        let looked_up = stats.prefix_queries - before.prefix_queries;
        let is_new = looked_up as usize == known.request.prompt.len() && known.request.outputs.is_empty();
        if was_still && self.in_flight.is_empty() && is_new && known.offer.is_none() {
            let Some(num_tokens) = self.subscriber.predict(&known.request, &self.config) else { return };
            assert_eq!(stats.prefix_hits - before.prefix_hits, num_tokens);
            let goes_on = |group: &KvGroup| group.first_read(num_tokens as usize) >= self.config.block_size as usize;
            let is_within = self.config.kv_groups.iter().any(goes_on);
            self.saw("hits foreseen", u64::from(num_tokens > 0));
            self.saw("hits foreseen within a window", u64::from(num_tokens > 0 && is_within));
        }
    }

    fn note(&mut self, rows: &[Row], sections: &Sections, before: &Stats) {
        let after = self.scheduler.stats();
        let lengths: Vec<usize> = sections.ranges("query_starts").iter().map(ExactSizeIterator::len).collect();
        let preempted = after.num_preemptions > before.num_preemptions;
        let makes_way = matches!(self.config.policy, PolicyName::Priority | PolicyName::Shortest);
        let admitted = !sections.slot_inits().is_empty();
        // A beam that waits for its siblings is preempted for the first in the queue if no other sequence can continue.
        let sets_back =
            preempted && admitted && !makes_way && self.requests.iter().any(|one| one.request.beam_width > 0);
        // If no sequence can continue with the free blocks, one that needs fewer is admitted.
        let is_stalled = self.in_flight.is_empty() && sections.slot_inits().len() == lengths.len();
        assert!(
            !preempted || !admitted || makes_way || sets_back || is_stalled,
            "nothing is admitted by a step that preempts"
        );
        let is_mixed = lengths.contains(&1) && lengths.iter().any(|&length| length > 1);
        let is_of = |policy| preempted && admitted && self.config.policy == policy;
        let (by_priority, by_size) = (is_of(PolicyName::Priority), is_of(PolicyName::Shortest));
        let (ins, outs): (Vec<_>, Vec<_>) = sections.swaps().into_iter().partition(|swap| swap.from_host);
        self.saw("preemptions by priority", u64::from(by_priority));
        self.saw("preemptions by size", u64::from(by_size));
        self.saw("preemptions of what waits for siblings", u64::from(sets_back));
        self.saw("steps that only swap", u64::from(lengths.is_empty()));
        self.saw("swaps out", outs.len() as u64);
        self.saw("swaps in", ins.len() as u64);
        let outlived = ins.iter().filter(|swap| self.device.has_outlived(swap.host)).count();
        self.saw("swaps in of what has outlived the device", outlived as u64);
        let (ins, outs): (Vec<_>, Vec<_>) = sections.state_swaps().into_iter().partition(|swap| swap.from_host);
        self.saw("state swaps out", outs.len() as u64);
        self.saw("states swapped out without a name", outs.iter().filter(|swap| swap.name.is_none()).count() as u64);
        self.saw("state swaps in", ins.len() as u64);
        let outlived = ins.iter().filter(|swap| self.device.has_state_outlived(swap.host)).count();
        self.saw("state swaps in of what has outlived the device", outlived as u64);
        let block_size = self.config.block_size as usize;
        let is_let_go = |row: &Row, group: &KvGroup| group.first_read(row.context.len() - row.num_tokens) >= block_size;
        let is_within = |row: &Row| self.config.kv_groups.iter().any(|group| is_let_go(row, group));
        let num_within = rows.iter().filter(|row| is_within(row)).count();
        let num_chunks = rows.iter().filter(|row| is_within(row) && row.num_tokens > 1 && row.num_drafts == 0).count();
        self.saw("rows within a window", num_within as u64);
        self.saw("chunks within a window", num_chunks as u64);
        self.saw("tokens in flight", sections.ints("tokens").iter().filter(|&&token| token == -1).count() as u64);
        self.saw("block copies", sections.pairs("block_copies").len() as u64);
        self.saw("slot copies", sections.pairs("slot_copies").len() as u64);
        self.saw("prefills beside decodes", u64::from(is_mixed));
        self.saw("evictions", u64::from(after.num_cached_blocks < before.num_cached_blocks));
        self.saw("hits within a step", u64::from(before.num_steps == 0 && after.prefix_hits > 0));
    }

    fn note_moods(&mut self, rows: &[Row], sections: &Sections) {
        for row in rows {
            let (num_planned, num_sampled) = (row.uniforms.len(), row.sampled.len());
            let what = match row.num_drafts {
                _ if row.is_stale => "rows that are stale",
                _ if num_planned == 0 && !row.told.is_empty() => "prompts told of in pieces",
                0 if num_planned > 1 && num_sampled == 0 => "forks that are not ready",
                0 if num_sampled < num_planned => "rows that are not ready",
                0 if num_sampled > num_planned => "rows that force",
                1.. if num_sampled == 0 => "rows with drafts that are not ready",
                1.. if num_sampled > num_planned => "rows with drafts that force",
                _ => continue,
            };
            self.saw(what, 1);
        }
        let goes_on = |history: &&(&[i32], &[i32])| !history.1.is_empty();
        self.saw("histories with output", sections.histories().iter().filter(goes_on).count() as u64);
    }

    pub(super) fn commit(&mut self, seconds: f64, positions: Positions) {
        let Some(step) = self.in_flight.pop_front() else { return };
        self.report_failures(step.step);
        let before = self.scheduler.stats();
        let waiting = before.num_waiting + before.num_held;
        let ((starts, tokens, logprobs), embeddings) = (step.result(positions), step.embeddings());
        let clients =
            self.scheduler.commit(step.step, &starts, &tokens, seconds, logprobs.as_ref(), embeddings.as_ref());
        let clients = clients.expect("the step is due").to_vec();
        assert_eq!(clients, self.scheduler.pending_clients());
        // Its loads have succeeded, or their failure would have been reported.
        for load in self.loads_of(step.step) {
            self.loads.remove(&load.id);
            assert_eq!(self.scheduler.finish_load(load.id, 0), Err(Error::UnknownLoad { load: load.id }));
        }
        let after = self.scheduler.stats();
        self.saw("forks without a slot", u64::from(after.num_waiting + after.num_held > waiting));
        self.saw("paused beams", after.num_paused);
    }

    pub(super) fn lose_device(&mut self) {
        let before = self.scheduler.stats();
        self.scheduler.lose_device();
        self.saw("losses of what pauses", u64::from(before.num_paused > 0));
        self.saw("losses while something loads", u64::from(before.num_loading > 0));
        self.saw("losses while the host is in use", u64::from(before.num_free_host_blocks < before.num_host_blocks));
        self.saw("losses while something is pinned", u64::from(before.num_pinned_blocks > 0));
        self.lose_saves();
        let after = self.scheduler.stats();
        let known = after.num_cached_blocks + after.num_cached_host_blocks;
        assert_eq!((after.num_used_blocks, known, after.num_running, after.num_loading), (0, 0, 0, 0));
        assert_eq!(after.num_free_host_blocks, after.num_host_blocks);
        for (load, _) in std::mem::take(&mut self.loads) {
            assert_eq!(self.scheduler.finish_load(load, u32::MAX), Err(Error::UnknownLoad { load }));
        }
        for in_flight in std::mem::take(&mut self.in_flight) {
            let (step, (starts, tokens, logprobs)) = (in_flight.step, in_flight.result(Positions::All));
            let late =
                self.scheduler.commit(step, &starts, &tokens, 0.0, logprobs.as_ref(), None).map(<[ClientId]>::to_vec);
            assert_eq!(late, Err(Error::UnknownStep { step }));
        }
        let mood = mix(self.moods ^ self.num_schedules as u64);
        let kept = self.device.lose(&self.config, |host| mix(mood ^ host as u64) % 4 != 0);
        self.hear();
        self.scheduler.restore_host_blocks(kept.clone()).expect("nothing is known of the host");
        let after = self.scheduler.stats();
        let distinct: BTreeSet<_> = kept.iter().map(|block| (block.hash, block.group)).collect();
        assert_eq!(after.num_cached_host_blocks + after.num_cached_host_states, distinct.len() as u64);
        assert_eq!(after.num_free_host_blocks, after.num_host_blocks);
        assert_eq!(after.num_free_host_states, after.num_host_states);
        if !kept.is_empty() {
            self.subscriber.misses_some();
        }
        self.saw("host blocks that outlive the device", kept.len() as u64);
    }
}
