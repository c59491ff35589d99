//! A simulated worker whose KV cache holds, instead of keys and values, the tokens that they depend on. It applies
//! plans in the documented order and checks that they are possible; it does not know the right answers. Each group of
//! layers reads its window through its own block tables, and must find there what it has written. For a stateful
//! request it keeps the tokens, as a grammar would, and yields no token if it has missed some.

use std::collections::BTreeSet;
use std::iter;
use std::rc::Rc;

use pyllm_scheduler::{BlockId, Config, HostBlock, HostBlockId, KvGroup, LoadId};

use crate::names::Name;
use crate::oracle::Prefix;
use crate::sections::Sections;

/// The contents of a place in the KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    group: usize,
    position: usize,
    tokens: Rc<[i32]>, // up to and including this one
    prefix: Prefix,    // the prefix of these tokens
    /// The failed load of this token, or of one that it was computed from.
    spoilt: Option<LoadId>,
}

pub type Block = Vec<Option<Content>>;

#[derive(Clone, Default)]
struct Slot {
    request: Option<Vec<u8>>,        // the sampling bytes of its initialisation
    tables: Vec<Vec<Option<usize>>>, // one per group
    last_sampled: Option<i32>,
    history: Option<Vec<i32>>, // known tokens of a stateful request
    /// Whether its last row gave no token or several, so that rows in flight were planned wrongly.
    is_off: bool,
    /// The slot for adapters that its request's is in.
    adapter: Option<usize>,
    /// Tokens of the prompt whose log-probabilities it has sent.
    num_told: Option<usize>,
}

/// The contents of a state: what all tokens of a sequence before it are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct State {
    num_tokens: usize,
    prefix: Prefix,
}

/// The requests, by their sampling bytes, and their grammars.
pub trait Model {
    /// The prefix that a request starts from, with the weights of this step.
    fn root(&self, request: &[u8]) -> Prefix;
    fn prompt(&self, request: &[u8]) -> &[i32];
    fn is_stateful(&self, request: &[u8]) -> bool;
    /// The number of its adapter; 0: none.
    fn adapter(&self, request: &[u8]) -> u32;
    /// Whether a row that starts with the first token sends log-probabilities of the prompt's next token, too; `None`:
    /// it sends none.
    fn tells_ahead(&self, request: &[u8]) -> Option<bool>;
    /// The forced tokens after a row's, of which `num_sampled` were sampled; `None`: the grammar is not ready.
    fn follow(&self, index: usize, row: &Row, num_sampled: usize) -> Option<Vec<i32>>;
}

pub struct Device {
    block_size: usize,
    groups: Vec<KvGroup>,
    max_num_seqs: usize,
    blocks: Vec<Block>,
    host: Vec<Block>,
    /// The names of host blocks' contents in plans, with the group and the index in the chain.
    host_names: Vec<Option<(Name, u32, u32)>>,
    /// Whether a host block kept its contents in the last loss of the device.
    has_outlived: Vec<bool>,
    slots: Vec<Slot>,
    states: Vec<Option<State>>,
    host_states: Vec<Option<State>>,
    host_state_names: Vec<Option<(Name, u32, u32)>>,
    has_state_outlived: Vec<bool>,
    adapters: Vec<u32>, // 0: none yet
}

/// The input and output of a row.
pub struct Row {
    pub request: Vec<u8>,
    pub context: Vec<i32>, // read through the block table, this step's tokens included
    pub blocks: BTreeSet<usize>,
    pub num_tokens: usize,
    /// Draft tokens, which follow the first sampled position.
    pub num_drafts: usize,
    pub uniforms: Vec<f32>,
    /// Its sampled tokens; those of a stateful request all count.
    pub sampled: Vec<i32>,
    /// All tokens that it has read.
    pub prefix: Prefix,
    pub spoilt: Option<LoadId>,
    pub is_stateful: bool,
    /// Whether it follows a row with another number of tokens than planned.
    pub is_stale: bool,
    /// Prompt tokens whose log-probabilities it sends.
    pub told: Vec<i32>,
}

/// Loaded keys and values: those of `tokens` from `first_token` on.
#[derive(Clone)]
pub struct Loaded {
    pub id: LoadId,
    pub blocks: Vec<Vec<usize>>, // for each group, those of the last tokens
    pub first_token: usize,
    pub tokens: Vec<i32>, // from the prompt's first token on
    pub root: Prefix,
    /// The state after the last token, of a model with states.
    pub state: Option<usize>,
    /// Number of tokens that are loaded correctly.
    pub num_right: usize,
}

impl Device {
    pub fn new(config: &Config) -> Self {
        let block_size = config.block_size as usize;
        let blocks = |number: u32| vec![vec![None; block_size]; number as usize];
        Self {
            block_size,
            groups: config.kv_groups.clone(),
            max_num_seqs: config.max_num_seqs as usize,
            blocks: blocks(config.num_blocks),
            host: blocks(config.num_host_blocks),
            host_names: vec![None; config.num_host_blocks as usize],
            has_outlived: vec![false; config.num_host_blocks as usize],
            slots: vec![Slot::default(); config.max_num_seqs as usize],
            states: vec![None; config.num_states as usize],
            host_states: vec![None; config.num_host_states as usize],
            host_state_names: vec![None; config.num_host_states as usize],
            has_state_outlived: vec![false; config.num_host_states as usize],
            adapters: vec![0; config.max_loras as usize],
        }
    }

    /// Loses all contents, except those of named host blocks that `outlives` accepts; gives these.
    pub fn lose(&mut self, config: &Config, outlives: impl Fn(usize) -> bool) -> Vec<HostBlock> {
        let lost = std::mem::replace(self, Self::new(config));
        let mut kept = Vec::new();
        for (at, (block, name)) in lost.host.into_iter().zip(lost.host_names).enumerate() {
            let Some((hash, group, index)) = name.filter(|_| outlives(at)) else { continue };
            (self.host[at], self.host_names[at], self.has_outlived[at]) = (block, name, true);
            kept.push(HostBlock { block: HostBlockId(at as u32), group, index, hash });
        }
        for (at, (state, name)) in lost.host_states.into_iter().zip(lost.host_state_names).enumerate() {
            let Some((hash, group, index)) = name.filter(|_| outlives(at)) else { continue };
            (self.host_states[at], self.host_state_names[at], self.has_state_outlived[at]) = (state, name, true);
            kept.push(HostBlock { block: HostBlockId(at as u32), group, index, hash });
        }
        kept
    }

    /// Forgets the names of the host's contents, so that the next loss keeps none.
    pub fn forget_host_names(&mut self) {
        self.host_names.fill(None);
        self.host_state_names.fill(None);
    }

    /// The adapters in its slots for them.
    pub fn adapters(&self) -> &[u32] {
        &self.adapters
    }

    pub fn has_outlived(&self, host: usize) -> bool {
        self.has_outlived[host]
    }

    pub fn has_state_outlived(&self, host: usize) -> bool {
        self.has_state_outlived[host]
    }

    pub fn execute(&mut self, plan: &Sections, loads: &[Loaded], model: &impl Model) -> Vec<Row> {
        self.apply_changes(plan, model);
        self.swap(plan);
        self.copy_blocks(plan);
        for load in loads {
            self.load(load);
        }
        self.write(plan, model);
        let mut rows = self.attend_and_sample(plan, model);
        for (index, (&slot, row)) in plan.ints("slots").iter().zip(&mut rows).enumerate() {
            let slot = &mut self.slots[slot as usize];
            // After several tokens every sample knows its last one, so no row may ask for it.
            slot.last_sampled = match row.sampled[..] {
                [] => slot.last_sampled,
                [token] => Some(token),
                _ => None,
            };
            if row.is_stateful && !row.sampled.is_empty() {
                slot.go_on(index, row, model);
            }
            slot.tell(row, model);
        }
        rows
    }

    /// The prefix of all tokens before a state, and their number.
    pub fn state(&self, state: usize) -> Option<(usize, Prefix)> {
        self.states[state].map(|state| (state.num_tokens, state.prefix))
    }

    pub fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    /// The contents of a block, which must be full for a group as block `index` of a sequence: all tokens up to its
    /// end, their prefix, and whether a load of any of it has failed.
    pub fn contents(&self, block: BlockId, group: usize, index: usize) -> (Rc<[i32]>, Prefix, bool) {
        let held = self.block(block).iter().map(|content| content.as_ref().expect("the block is full"));
        let held: Vec<_> = held.collect();
        let positions = held.iter().map(|content| (content.group, content.position));
        assert!(positions.eq((0..self.block_size).map(|offset| (group, index * self.block_size + offset))));
        let last = held.last().expect("a block has a token");
        assert!(held.iter().all(|content| last.tokens.starts_with(&content.tokens)));
        (Rc::clone(&last.tokens), last.prefix, held.iter().any(|content| content.spoilt.is_some()))
    }

    pub fn load(&mut self, load: &Loaded) {
        if let Some(state) = load.state {
            let prefix = load.tokens.iter().fold(load.root, |prefix, &token| prefix.then(token));
            let is_whole = load.num_right == load.tokens.len() - load.first_token;
            self.states[state] = is_whole.then_some(State { num_tokens: load.tokens.len(), prefix });
        }
        let mut prefix = load.root;
        for (position, &token) in load.tokens.iter().enumerate() {
            prefix = prefix.then(token);
            let Some(index) = position.checked_sub(load.first_token) else { continue };
            let spoilt = (index >= load.num_right).then_some(load.id);
            let tokens: Rc<[i32]> = load.tokens[..=position].into();
            let from_end = (load.tokens.len() - 1 - position) / self.block_size;
            for (group, blocks) in load.blocks.iter().enumerate() {
                let Some(block) = blocks.len().checked_sub(1 + from_end).map(|at| blocks[at]) else { continue };
                let content = Content { group, position, tokens: Rc::clone(&tokens), prefix, spoilt };
                self.blocks[block][position % self.block_size] = Some(content);
            }
        }
    }

    fn apply_changes(&mut self, plan: &Sections, model: &impl Model) {
        let copies = plan.pairs("slot_copies");
        assert_distinct("slot copies' destinations", copies.iter().map(|copy| copy.1));
        let sources: Vec<Slot> = copies.iter().map(|&(source, _)| self.slots[source].clone()).collect();
        for (&(_, destination), source) in copies.iter().zip(sources) {
            self.slots[destination] = source;
        }
        let loads = plan.pairs("adapter_loads");
        assert_distinct("slots with a new adapter", loads.iter().map(|load| load.0));
        for (slot, adapter) in loads {
            assert!(!self.adapters.contains(&(adapter as u32)), "adapter {adapter} is there");
            self.adapters[slot] = adapter as u32;
        }
        let adapters = plan.ints("adapter_slots");
        assert_eq!(adapters.len(), if self.adapters.is_empty() { 0 } else { plan.slot_inits().len() });
        assert_distinct("initialised slots", plan.slot_inits().iter().map(|init| init.0));
        let adapters = adapters.iter().copied().chain(iter::repeat(-1));
        let inits = plan.slot_inits().into_iter().zip(plan.histories()).zip(adapters);
        for (((slot, request), (prompt, output)), adapter) in inits {
            let is_stateful = model.is_stateful(request);
            assert_eq!(prompt, if is_stateful { model.prompt(request) } else { &[] });
            assert!(is_stateful || output.is_empty());
            let history = is_stateful.then(|| [prompt, output].concat());
            let tables = vec![Vec::new(); self.groups.len()];
            let adapter = usize::try_from(adapter).ok();
            self.slots[slot] = Slot { request: Some(request.to_vec()), tables, history, adapter, ..Slot::default() };
        }
        let changes = plan.ints("table_slots").iter().zip(plan.ints("table_indices")).zip(plan.ints("table_blocks"));
        for ((&slot, &index), &block) in changes {
            let (group, slot) = (slot as usize / self.max_num_seqs, slot as usize % self.max_num_seqs);
            let (table, index) = (&mut self.slots[slot].tables[group], index as usize);
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
                (self.host_names[swap.host], self.has_outlived[swap.host]) = (swap.name, false);
            }
        }
        let swaps = plan.state_swaps();
        assert!(swaps.is_sorted_by_key(|swap| swap.from_host), "what goes out goes before what comes in");
        let written = |from_host| swaps.iter().filter(move |swap| swap.from_host == from_host);
        assert_distinct("host states written", written(false).map(|swap| swap.host));
        assert_distinct("states swapped in", written(true).map(|swap| swap.block));
        for swap in &swaps {
            if swap.from_host {
                self.states[swap.block] = self.host_states[swap.host];
            } else {
                self.host_states[swap.host] = self.states[swap.block];
                (self.host_state_names[swap.host], self.has_state_outlived[swap.host]) = (swap.name, false);
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

    /// Writes the tokens of all rows, before any row reads, as each layer of a model does.
    fn write(&mut self, plan: &Sections, model: &impl Model) {
        assert_distinct("written places", plan.ints("slot_mapping").iter().map(|&place| place as usize));
        let slots = plan.ints("slots").chunk_by(|before, after| self.has_states() && before == after);
        assert_distinct("slots", slots.map(|rows| rows[0] as usize));
        let rows = plan.ints("slots").iter().zip(plan.ranges("query_starts"));
        for (row, ((&slot, range), &length)) in rows.zip(plan.ints("sequence_lengths")).enumerate() {
            let slot = self.slots[slot as usize].clone();
            assert!(!range.is_empty(), "a row computes something");
            let adapter = slot.adapter.map_or(0, |adapter| self.adapters[adapter]);
            assert_eq!(adapter, model.adapter(slot.request()), "a row is computed with its request's adapter");
            let (start, end) = (length as usize - range.len(), length as usize);
            let (mut tokens, mut prefix) = match start.checked_sub(1) {
                Some(before) => {
                    let content = self.read(&slot, 0, before);
                    (content.tokens.to_vec(), content.prefix)
                }
                None => (Vec::new(), model.root(slot.request())),
            };
            self.check_state(plan, row, State { num_tokens: start, prefix });
            let spoilt = self.reads(start, start).find_map(|(group, at)| self.read(&slot, group, at).spoilt);
            for (position, index) in (start..end).zip(range) {
                let token = match plan.ints("tokens")[index] {
                    // A stateful one may not have been ready.
                    -1 if slot.history.is_some() => slot.last_sampled.unwrap_or(0),
                    -1 => slot.last_sampled.expect("the slot has sampled a token that no one knows yet"),
                    token => token,
                };
                prefix = prefix.then(token);
                tokens.push(token);
                assert_eq!(plan.ints("positions")[index] as usize, position);
                let offset = position % self.block_size;
                for (group, places) in plan.ints("slot_mapping").chunks_exact(plan.ints("tokens").len()).enumerate() {
                    let block = slot.block(group, position / self.block_size);
                    assert_eq!(places[index] as usize, block * self.block_size + offset);
                    let content = Content { group, position, tokens: tokens[..].into(), prefix, spoilt };
                    self.blocks[block][offset] = Some(content);
                }
            }
            if self.has_states() {
                let destination = plan.ints("state_destinations")[row] as usize;
                self.states[destination] = Some(State { num_tokens: end, prefix });
            }
        }
    }

    fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Checks that a row reads the state of all tokens before it.
    fn check_state(&self, plan: &Sections, row: usize, expected: State) {
        let sources = plan.ints("state_sources");
        assert_eq!(sources.len(), if self.has_states() { plan.ints("slots").len() } else { 0 });
        match sources.get(row) {
            None => {}
            Some(-1) => assert_eq!(expected.num_tokens, 0, "a sequence begins without a state"),
            Some(&source) => assert_eq!(self.states[source as usize], Some(expected), "state {source} of row {row}"),
        }
    }

    fn attend_and_sample(&mut self, plan: &Sections, model: &impl Model) -> Vec<Row> {
        let queries = plan.ranges("query_starts").into_iter().zip(plan.ranges("sampled_starts"));
        let rows = plan.ints("slots").iter().zip(plan.ints("sequence_lengths")).zip(queries);
        let rows = rows.map(|((&slot, &length), (query, sampled))| {
            let (at, length) = (slot as usize, length as usize);
            let slot = &self.slots[at];
            let context = self.read(slot, 0, length - 1).tokens.to_vec();
            let mut prefix = model.root(slot.request());
            let extend = |&token: &i32| {
                prefix = prefix.then(token);
                prefix
            };
            let prefixes: Vec<_> = context.iter().map(extend).collect();
            let mut blocks = BTreeSet::new();
            let mut spoilt = None;
            for (group, position) in self.reads(length - query.len(), length) {
                let held = self.read(slot, group, position);
                spoilt = spoilt.or(held.spoilt);
                let is_own = held.prefix == prefixes[position] || spoilt.is_some();
                assert!(is_own, "position {position} holds another sequence's content, or that of other weights");
                blocks.insert(slot.block(group, position / self.block_size));
            }
            let logits_rows: Vec<_> =
                plan.ints("logits_rows")[sampled.clone()].iter().map(|&row| row as usize).collect();
            let num_drafts = logits_rows.first().map_or(0, |first| query.end - 1 - first);
            let is_of_last = logits_rows.iter().all(|&row| row == query.end - 1);
            let is_of_drafts = logits_rows.iter().copied().eq(query.end - 1 - num_drafts..query.end);
            assert!(is_of_last || is_of_drafts, "logits are wanted of a row's last token, or of each draft as well");
            let uniforms = plan.uniforms[sampled].to_vec();
            let positions = logits_rows.iter().map(|row| length + row - query.end);
            let sampled = positions.zip(&uniforms).map(|(position, &uniform)| prefixes[position].next_token(uniform));
            let sampled: Vec<_> = sampled.collect();
            let is_stateful = slot.history.is_some();
            let tokens = &plan.ints("tokens")[query.start..query.end - num_drafts];
            let is_stale = !sampled.is_empty() && self.slots[at].catch_up(tokens, length - num_drafts, model);
            let slot = &self.slots[at];
            Row {
                is_stateful,
                is_stale,
                told: Vec::new(),
                request: slot.request().to_vec(),
                blocks,
                num_tokens: query.len(),
                num_drafts,
                sampled: if is_stale { Vec::new() } else { sampled },
                context,
                prefix: *prefixes.last().expect("a row reads its own tokens"),
                uniforms,
                spoilt,
            }
        });
        rows.collect()
    }

    fn read(&self, slot: &Slot, group: usize, position: usize) -> &Content {
        let block = slot.block(group, position / self.block_size);
        let content = self.blocks[block][position % self.block_size].as_ref().expect("the place was written");
        assert_eq!((content.group, content.position), (group, position));
        content
    }

    /// The groups and positions before `end` that tokens from `start` on read.
    fn reads(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let groups = self.groups.iter().enumerate();
        groups.flat_map(move |(group, of)| (of.first_read(start)..end).map(move |position| (group, position)))
    }
}

/// The positions that a group reads, computed as a model would.
pub trait Reach {
    /// The first position that the token at `position` reads.
    fn first_read(&self, position: usize) -> usize;
}

impl Reach for KvGroup {
    fn first_read(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize))
    }
}

impl Slot {
    fn block(&self, group: usize, index: usize) -> usize {
        self.tables[group][index].expect("the place is in the block table")
    }

    fn request(&self) -> &[u8] {
        self.request.as_deref().expect("the slot was initialised")
    }

    /// Adds the tokens of a row that samples, which come before `length`. True: they do not follow the known ones.
    fn catch_up(&mut self, tokens: &[i32], length: usize, model: &impl Model) -> bool {
        let num_prompt_tokens = model.prompt(self.request()).len();
        let Some(known) = &mut self.history else { return false };
        if self.is_off && tokens.contains(&-1) {
            return true;
        }
        self.is_off = false;
        for (position, &token) in (length - tokens.len()..).zip(tokens) {
            match known.get(position) {
                None if token == -1 || position > known.len() => return true,
                None => known.push(token),
                Some(&before) if token == -1 || token == before => {}
                Some(_) => {
                    assert!(
                        position >= num_prompt_tokens && position + 1 == length,
                        "a fork differs in its last token"
                    );
                    known.truncate(position);
                    known.push(token);
                }
            }
        }
        known.len() > length
    }

    /// Compares drafts, and adds the grammar's forced tokens; or gives no tokens if it is not ready.
    fn go_on(&mut self, index: usize, row: &mut Row, model: &impl Model) {
        let Some(known) = &mut self.history else { return };
        let drafts = &row.context[row.context.len() - row.num_drafts..];
        let is_fork = row.sampled.len() > 1 && drafts.is_empty();
        let num_accepted = drafts.iter().zip(&row.sampled).take_while(|(draft, token)| draft == token).count();
        let num_kept = if is_fork { row.sampled.len() } else { num_accepted + 1 };
        match model.follow(index, row, num_kept) {
            None => {
                row.sampled.clear();
                self.last_sampled = Some(0); // any token would do
                self.is_off = true;
            }
            Some(_) if is_fork => {}
            Some(forced) => {
                row.sampled.truncate(num_kept);
                // Of several new tokens, a row in flight follows the sampled one.
                self.last_sampled = (num_accepted == 0).then(|| row.sampled[0]);
                row.sampled.extend(forced);
                self.is_off = row.sampled.len() > 1;
                known.extend(&row.sampled);
            }
        }
    }

    fn tell(&mut self, row: &mut Row, model: &impl Model) {
        let Some(tells_ahead) = model.tells_ahead(&row.request) else { return };
        let (end, ahead) = (row.context.len(), usize::from(tells_ahead));
        let prompt = model.prompt(&row.request);
        let start = self.num_told.unwrap_or((end - row.num_tokens + ahead).max(1));
        let end = (end + ahead).min(prompt.len());
        row.told = prompt.get(start..end).unwrap_or_default().to_vec();
        self.num_told = Some(start.max(end));
    }
}

fn assert_distinct(what: &str, items: impl Iterator<Item = usize>) {
    let mut seen = BTreeSet::new();
    for item in items {
        assert!(seen.insert(item), "{what}: {item} is there twice");
    }
}
