//! A worker whose KV cache holds, instead of keys and values, what they were computed from. It does what a plan says in
//! the documented order and checks that it is told nothing impossible; what the answers should be it does not know.

use std::collections::BTreeSet;

use crate::oracle::Prefix;
use crate::sections::Sections;

/// What a place in the KV cache holds.
#[derive(Clone, Copy, Debug)]
struct Content {
    position: usize,
    token: i32,
    prefix: Prefix, // up to this token, itself included
}

#[derive(Clone, Default)]
struct Slot {
    request: Vec<u8>, // the sampling bytes it was initialised with
    root: Option<Prefix>,
    table: Vec<Option<usize>>,
    last_sampled: Option<i32>,
}

pub struct Device {
    block_size: usize,
    blocks: Vec<Vec<Option<Content>>>,
    slots: Vec<Slot>,
}

/// What a row was and did.
pub struct Row {
    pub request: Vec<u8>,
    pub context: Vec<i32>, // read through the block table, this step's tokens included
    pub uniforms: Vec<f32>,
    pub sampled: Vec<i32>,
}

impl Device {
    pub fn new(block_size: usize, num_blocks: usize, num_slots: usize) -> Self {
        Self { block_size, blocks: vec![vec![None; block_size]; num_blocks], slots: vec![Slot::default(); num_slots] }
    }

    /// `root` gives the prefix that a request starts from, by its sampling bytes.
    pub fn execute(&mut self, plan: &Sections, root: impl Fn(&[u8]) -> Prefix) -> Vec<Row> {
        self.apply_changes(plan, root);
        self.write(plan);
        let rows = self.attend_and_sample(plan);
        for (&slot, row) in plan.ints("slots").iter().zip(&rows) {
            // After a fork every sample knows its token, so nobody may ask for it.
            if let [token] = row.sampled[..] {
                self.slots[slot as usize].last_sampled = Some(token);
            }
        }
        rows
    }

    fn apply_changes(&mut self, plan: &Sections, root: impl Fn(&[u8]) -> Prefix) {
        let copies = plan.pairs("slot_copies");
        assert_distinct("slot copies' destinations", copies.iter().map(|copy| copy.1));
        let sources: Vec<Slot> = copies.iter().map(|&(source, _)| self.slots[source].clone()).collect();
        for (&(_, destination), source) in copies.iter().zip(sources) {
            self.slots[destination] = source;
        }
        assert_distinct("initialised slots", plan.slot_inits().iter().map(|init| init.0));
        for (slot, request) in plan.slot_inits() {
            let root = Some(root(request));
            self.slots[slot] = Slot { request: request.to_vec(), root, ..Slot::default() };
        }
        let changes = plan.ints("table_slots").iter().zip(plan.ints("table_indices")).zip(plan.ints("table_blocks"));
        for ((&slot, &index), &block) in changes {
            let (table, index) = (&mut self.slots[slot as usize].table, index as usize);
            table.resize(table.len().max(index + 1), None);
            table[index] = Some(block as usize);
        }
        let copies = plan.pairs("block_copies");
        assert_distinct("block copies' destinations", copies.iter().map(|copy| copy.1));
        for &(source, destination) in &copies {
            assert!(copies.iter().all(|copy| copy.1 != source), "block {source} is copied from and to");
            let content = self.blocks[source].clone();
            self.blocks[destination] = content;
        }
    }

    /// Every row writes before any row reads, as each layer of a model does.
    fn write(&mut self, plan: &Sections) {
        assert_distinct("written places", plan.ints("slot_mapping").iter().map(|&place| place as usize));
        assert_distinct("slots", plan.ints("slots").iter().map(|&slot| slot as usize));
        let rows = plan.ints("slots").iter().zip(plan.ranges("query_starts"));
        for ((&slot, range), &length) in rows.zip(plan.ints("sequence_lengths")) {
            let slot = self.slots[slot as usize].clone();
            assert!(!range.is_empty(), "a row computes something");
            let (start, end) = (length as usize - range.len(), length as usize);
            let mut prefix = match start.checked_sub(1) {
                Some(before) => self.read(&slot, before).prefix,
                None => slot.root.expect("the slot was initialised"),
            };
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
                self.blocks[block][offset] = Some(Content { position, token, prefix });
            }
        }
    }

    fn attend_and_sample(&self, plan: &Sections) -> Vec<Row> {
        let queries = plan.ranges("query_starts").into_iter().zip(plan.ranges("sampled_starts"));
        let rows = plan.ints("slots").iter().zip(plan.ints("sequence_lengths")).zip(queries);
        let rows = rows.map(|((&slot, &length), (query, sampled))| {
            let slot = &self.slots[slot as usize];
            let mut prefix = slot.root.expect("the slot was initialised");
            let context: Vec<i32> = (0..length as usize)
                .map(|position| {
                    let content = self.read(slot, position);
                    prefix = prefix.then(content.token);
                    assert_eq!(content.prefix, prefix, "position {position} holds another sequence's content");
                    content.token
                })
                .collect();
            for &row in &plan.ints("logits_rows")[sampled.clone()] {
                assert_eq!(row as usize, query.end - 1, "logits are wanted of a row's last token");
            }
            let uniforms = plan.uniforms[sampled].to_vec();
            let sampled = uniforms.iter().map(|&uniform| prefix.next_token(uniform)).collect();
            Row { request: slot.request.clone(), context, uniforms, sampled }
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

fn assert_distinct(what: &str, items: impl Iterator<Item = usize>) {
    let mut seen = BTreeSet::new();
    for item in items {
        assert!(seen.insert(item), "{what}: {item} is there twice");
    }
}
