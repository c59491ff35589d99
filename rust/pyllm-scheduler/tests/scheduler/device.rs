//! A worker whose KV cache holds, instead of keys and values, what they were computed from. It does what a plan says in
//! the documented order and checks that it is told nothing impossible; what the answers should be it does not know.

use std::collections::BTreeSet;

use pyllm_scheduler::{Config, LoadId};

use crate::oracle::Prefix;
use crate::sections::Sections;

/// What a place in the KV cache holds.
#[derive(Clone, Copy, Debug)]
struct Content {
    position: usize,
    token: i32,
    prefix: Prefix, // up to this token, itself included
    /// The load that did not bring it, or did not bring something it was computed from.
    spoilt: Option<LoadId>,
}

type Block = Vec<Option<Content>>;

#[derive(Clone, Default)]
struct Slot {
    request: Option<Vec<u8>>, // the sampling bytes it was initialised with
    table: Vec<Option<usize>>,
    last_sampled: Option<i32>,
}

pub struct Device {
    block_size: usize,
    blocks: Vec<Block>,
    host: Vec<Block>,
    slots: Vec<Slot>,
}

/// What a row was and did.
pub struct Row {
    pub request: Vec<u8>,
    pub context: Vec<i32>, // read through the block table, this step's tokens included
    pub blocks: BTreeSet<usize>,
    pub num_tokens: usize,
    /// Tokens after the first that was sampled at.
    pub num_drafts: usize,
    pub uniforms: Vec<f32>,
    pub sampled: Vec<i32>,
    pub spoilt: Option<LoadId>,
}

/// Keys and values from outside: those of `tokens` from `first_token` on.
#[derive(Clone)]
pub struct Loaded {
    pub id: LoadId,
    pub blocks: Vec<usize>,
    pub first_token: usize,
    pub tokens: Vec<i32>, // from the first of the prompt on
    pub root: Prefix,
    /// How many come as they should.
    pub num_right: usize,
}

impl Device {
    pub fn new(config: &Config) -> Self {
        let block_size = config.block_size as usize;
        let blocks = |number: u32| vec![vec![None; block_size]; number as usize];
        Self {
            block_size,
            blocks: blocks(config.num_blocks),
            host: blocks(config.num_host_blocks),
            slots: vec![Slot::default(); config.max_num_seqs as usize],
        }
    }

    /// `root` gives the prefix that a request starts from, by its sampling bytes, with the weights of this step.
    pub fn execute(&mut self, plan: &Sections, loads: &[Loaded], root: impl Fn(&[u8]) -> Prefix) -> Vec<Row> {
        self.apply_changes(plan);
        self.swap(plan);
        self.copy_blocks(plan);
        for load in loads {
            self.load(load);
        }
        self.write(plan, &root);
        let rows = self.attend_and_sample(plan, &root);
        for (&slot, row) in plan.ints("slots").iter().zip(&rows) {
            // After several every sample knows its token, so nobody may ask for it.
            self.slots[slot as usize].last_sampled = match row.sampled[..] {
                [] => self.slots[slot as usize].last_sampled,
                [token] => Some(token),
                _ => None,
            };
        }
        rows
    }

    pub fn load(&mut self, load: &Loaded) {
        let mut prefix = load.root;
        for (position, &token) in load.tokens.iter().enumerate() {
            prefix = prefix.then(token);
            let Some(index) = position.checked_sub(load.first_token) else { continue };
            let content = if index < load.num_right {
                Content { position, token, prefix, spoilt: None }
            } else {
                Content { position, token: 0, prefix, spoilt: Some(load.id) }
            };
            self.blocks[load.blocks[index / self.block_size]][index % self.block_size] = Some(content);
        }
    }

    fn apply_changes(&mut self, plan: &Sections) {
        let copies = plan.pairs("slot_copies");
        assert_distinct("slot copies' destinations", copies.iter().map(|copy| copy.1));
        let sources: Vec<Slot> = copies.iter().map(|&(source, _)| self.slots[source].clone()).collect();
        for (&(_, destination), source) in copies.iter().zip(sources) {
            self.slots[destination] = source;
        }
        assert_distinct("initialised slots", plan.slot_inits().iter().map(|init| init.0));
        for (slot, request) in plan.slot_inits() {
            self.slots[slot] = Slot { request: Some(request.to_vec()), ..Slot::default() };
        }
        let changes = plan.ints("table_slots").iter().zip(plan.ints("table_indices")).zip(plan.ints("table_blocks"));
        for ((&slot, &index), &block) in changes {
            let (table, index) = (&mut self.slots[slot as usize].table, index as usize);
            table.resize(table.len().max(index + 1), None);
            table[index] = Some(block as usize);
        }
    }

    fn swap(&mut self, plan: &Sections) {
        let swaps = plan.swaps();
        assert!(swaps.is_sorted_by_key(|swap| swap.from_host), "what goes out goes before what comes in");
        let written = |from_host| swaps.iter().filter(move |swap| swap.from_host == from_host);
        assert_distinct("host blocks written", written(false).map(|swap| swap.host));
        assert_distinct("blocks swapped in", written(true).map(|swap| swap.block));
        for swap in &swaps {
            if swap.from_host {
                self.blocks[swap.block].clone_from(&self.host[swap.host]);
            } else {
                self.host[swap.host].clone_from(&self.blocks[swap.block]);
            }
        }
    }

    fn copy_blocks(&mut self, plan: &Sections) {
        let copies = plan.pairs("block_copies");
        assert_distinct("block copies' destinations", copies.iter().map(|copy| copy.1));
        for &(source, destination) in &copies {
            assert!(copies.iter().all(|copy| copy.1 != source), "block {source} is copied from and to");
            let content = self.blocks[source].clone();
            self.blocks[destination] = content;
        }
    }

    /// Every row writes before any row reads, as each layer of a model does.
    fn write(&mut self, plan: &Sections, root: &impl Fn(&[u8]) -> Prefix) {
        assert_distinct("written places", plan.ints("slot_mapping").iter().map(|&place| place as usize));
        assert_distinct("slots", plan.ints("slots").iter().map(|&slot| slot as usize));
        let rows = plan.ints("slots").iter().zip(plan.ranges("query_starts"));
        for ((&slot, range), &length) in rows.zip(plan.ints("sequence_lengths")) {
            let slot = self.slots[slot as usize].clone();
            assert!(!range.is_empty(), "a row computes something");
            let (start, end) = (length as usize - range.len(), length as usize);
            let mut prefix = match start.checked_sub(1) {
                Some(before) => self.read(&slot, before).prefix,
                None => root(slot.request()),
            };
            let spoilt = (0..start).find_map(|position| self.read(&slot, position).spoilt);
            for (position, index) in (start..end).zip(range) {
                let token = match plan.ints("tokens")[index] {
                    -1 => slot.last_sampled.expect("the slot has sampled a token that no one knows yet"),
                    token => token,
                };
                prefix = prefix.then(token);
                assert_eq!(plan.ints("positions")[index] as usize, position);
                let block = slot.table[position / self.block_size].expect("the place is in the block table");
                let offset = position % self.block_size;
                assert_eq!(plan.ints("slot_mapping")[index] as usize, block * self.block_size + offset);
                self.blocks[block][offset] = Some(Content { position, token, prefix, spoilt });
            }
        }
    }

    fn attend_and_sample(&self, plan: &Sections, root: &impl Fn(&[u8]) -> Prefix) -> Vec<Row> {
        let queries = plan.ranges("query_starts").into_iter().zip(plan.ranges("sampled_starts"));
        let rows = plan.ints("slots").iter().zip(plan.ints("sequence_lengths")).zip(queries);
        let rows = rows.map(|((&slot, &length), (query, sampled))| {
            let (slot, length) = (&self.slots[slot as usize], length as usize);
            let mut prefix = root(slot.request());
            let mut read = Vec::with_capacity(length);
            let mut spoilt = None;
            let mut context = Vec::with_capacity(length);
            for position in 0..length {
                let held = self.read(slot, position);
                spoilt = spoilt.or(held.spoilt);
                prefix = prefix.then(held.token);
                let is_own = held.prefix == prefix || spoilt.is_some();
                assert!(is_own, "position {position} holds another sequence's content, or that of other weights");
                context.push(held.token);
                read.push(prefix);
            }
            let logits_rows: Vec<_> =
                plan.ints("logits_rows")[sampled.clone()].iter().map(|&row| row as usize).collect();
            let num_drafts = logits_rows.first().map_or(0, |first| query.end - 1 - first);
            let is_of_last = logits_rows.iter().all(|&row| row == query.end - 1);
            let is_of_drafts = logits_rows.iter().copied().eq(query.end - 1 - num_drafts..query.end);
            assert!(is_of_last || is_of_drafts, "logits are wanted of a row's last token, or of each draft as well");
            let uniforms = plan.uniforms[sampled].to_vec();
            let positions = logits_rows.iter().map(|row| length + row - query.end);
            let sampled = positions.zip(&uniforms).map(|(position, &uniform)| read[position].next_token(uniform));
            Row {
                request: slot.request().to_vec(),
                blocks: slot.table[..length.div_ceil(self.block_size)].iter().copied().flatten().collect(),
                num_tokens: query.len(),
                num_drafts,
                sampled: sampled.collect(),
                context,
                uniforms,
                spoilt,
            }
        });
        rows.collect()
    }

    fn read(&self, slot: &Slot, position: usize) -> Content {
        let block = slot.table[position / self.block_size].expect("the place is in the block table");
        let content = self.blocks[block][position % self.block_size].expect("the place was written");
        assert_eq!(content.position, position);
        content
    }
}

impl Slot {
    fn request(&self) -> &[u8] {
        self.request.as_deref().expect("the slot was initialised")
    }
}

fn assert_distinct(what: &str, items: impl Iterator<Item = usize>) {
    let mut seen = BTreeSet::new();
    for item in items {
        assert!(seen.insert(item), "{what}: {item} is there twice");
    }
}
