//! The plan of one step: flat arrays in one buffer, in the layout of the kernels. Its size grows with rows and new
//! tokens, and with context only where a stateful request's slot is initialised. Does not know why a row is planned.
//!
//! A worker applies a plan in this order: slot copies, adapter loads, slot initialisations, block table changes, swaps, block copies,
//! the forward pass. Swaps to the host come before swaps from it: a swapped-out block may be overwritten in the same
//! plan, and swapped in again. No block is both the target of a block copy and the source of another, so the copies may
//! run in parallel. Slot copies may run in parallel if every source is read before any destination is written.

use crate::block_hash::GroupHash;
use crate::ids::{BlockId, HostBlockId, HostStateId, Slot, StateId, StepId};

/// Every section starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

/// Bytes of a name in `swap_names`.
pub const SWAP_NAME_SIZE: usize = 40;

/// The group of a block without a name.
const NO_GROUP: u32 = u32::MAX;

/// Name and element type of each section, in order: i is int32, f is float32 (little endian both), B is a byte.
///
/// T: tokens, R: rows, S: sampled positions, K: block table changes, I: slot initialisations, G: groups of layers, each
/// with its own block tables.
pub const SECTIONS: [(&str, char); 28] = [
    ("tokens", 'i'),           // [T] -1: the token that the slot sampled last
    ("positions", 'i'),        // [T]
    ("slot_mapping", 'i'),     // [G * T] block * block_size + offset, one group after another
    ("query_starts", 'i'),     // [R + 1]
    ("sequence_lengths", 'i'), // [R] context, this step's tokens included
    ("slots", 'i'),            // [R]
    ("logits_rows", 'i'),      // [S] index into tokens; a forking row names one n times, one with drafts several
    ("sampled_starts", 'i'),   // [R + 1]
    ("uniforms", 'f'),         // [S]
    ("table_slots", 'i'),      // [K] group * max_num_seqs + slot: block_tables[that][index] = block
    ("table_indices", 'i'),    // [K]
    ("table_blocks", 'i'),     // [K]
    ("block_copies", 'i'),     // [2 * copies] source, destination
    ("swaps", 'i'),            // [3 * swaps] direction (0 to the host, 1 from it), block, host block
    ("slot_copies", 'i'),      // [2 * copies] source, destination
    ("slot_inits", 'i'),       // [I] slots
    ("sampling_starts", 'i'),  // [I + 1]
    ("sampling", 'B'),         // the requests' `sampling` bytes, end to end
    ("history_starts", 'i'),   // [I + 1]
    ("histories", 'i'),        // all known tokens of stateful requests, prompt and output, end to end
    ("prompt_lengths", 'i'),   // [I] tokens of the prompt
    // Only of a model with states: a row reads one and writes one, in the order of the rows.
    ("state_sources", 'i'),      // [R] -1: none, the sequence begins
    ("state_destinations", 'i'), // [R] may be the source
    ("state_swaps", 'i'),        // [3 * swaps] direction, state, host state; as `swaps`
    // For each swap to the host: the hash of the block's contents, its group and its index in the chain, both uint32. A
    // block that the prefix cache does not know has zeros and the group 2^32 - 1.
    ("swap_names", 'B'),
    ("state_swap_names", 'B'), // the same for `state_swaps`: a state has the name of the block that ends where it does
    // Only with `max_loras`: the slot of the device that an initialised slot's adapter is in; -1: it has no adapter.
    ("adapter_slots", 'i'), // [I]
    ("adapter_loads", 'i'), // [2 * loads] slot of the device, number of the adapter to copy into it
];

/// The work of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The step's id, for `commit`.
    pub step: StepId,
    /// Elements in each of `SECTIONS`.
    pub counts: [u32; SECTIONS.len()],
    /// The sections.
    pub buffer: Vec<u8>,
}

impl Plan {
    /// Tokens that the step computes.
    pub fn num_tokens(&self) -> u32 {
        self.counts[0]
    }

    /// Rows. A sequence has one, or several where its states are kept between.
    pub fn num_rows(&self) -> u32 {
        self.counts[5]
    }
}

/// The sections of the plan in progress. Its memory is reused for every plan.
#[derive(Default)]
pub(crate) struct Draft {
    max_num_seqs: u32,
    pub(crate) tokens: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    pub(crate) slot_mappings: Vec<Vec<i32>>, // one per group
    query_starts: Vec<i32>,
    sequence_lengths: Vec<i32>,
    slots: Vec<i32>,
    logits_rows: Vec<i32>,
    sampled_starts: Vec<i32>,
    uniforms: Vec<f32>,
    table_slots: Vec<i32>,
    table_indices: Vec<i32>,
    table_blocks: Vec<i32>,
    block_copies: Vec<i32>,
    swaps: Vec<i32>,
    slot_copies: Vec<i32>,
    slot_inits: Vec<i32>,
    sampling_starts: Vec<i32>,
    sampling: Vec<u8>,
    history_starts: Vec<i32>,
    histories: Vec<i32>,
    prompt_lengths: Vec<i32>,
    swap_names: Vec<u8>,
    state_sources: Vec<i32>,
    state_destinations: Vec<i32>,
    state_swaps: Vec<i32>,
    state_swap_names: Vec<u8>,
    adapter_slots: Vec<i32>,
    adapter_loads: Vec<i32>,
}

impl Draft {
    pub(crate) fn new(num_groups: usize, max_num_seqs: u32) -> Self {
        Self { max_num_seqs, slot_mappings: vec![Vec::new(); num_groups], ..Self::default() }
    }

    pub(crate) fn clear(&mut self) {
        for section in [
            &mut self.tokens,
            &mut self.positions,
            &mut self.query_starts,
            &mut self.sequence_lengths,
            &mut self.slots,
            &mut self.logits_rows,
            &mut self.sampled_starts,
            &mut self.table_slots,
            &mut self.table_indices,
            &mut self.table_blocks,
            &mut self.block_copies,
            &mut self.swaps,
            &mut self.slot_copies,
            &mut self.slot_inits,
            &mut self.sampling_starts,
            &mut self.history_starts,
            &mut self.histories,
            &mut self.prompt_lengths,
            &mut self.state_sources,
            &mut self.state_destinations,
            &mut self.state_swaps,
            &mut self.adapter_slots,
            &mut self.adapter_loads,
        ] {
            section.clear();
        }
        self.slot_mappings.iter_mut().for_each(Vec::clear);
        self.uniforms.clear();
        self.sampling.clear();
        self.swap_names.clear();
        self.state_swap_names.clear();
        for starts in
            [&mut self.query_starts, &mut self.sampled_starts, &mut self.sampling_starts, &mut self.history_starts]
        {
            starts.push(0);
        }
    }

    /// Initialises a slot. `history` is the output so far of a stateful request.
    pub(crate) fn initialise_slot(&mut self, slot: Slot, sampling: &[u8], prompt: &[i32], history: Option<&[i32]>) {
        self.slot_inits.push(slot.0 as i32);
        self.sampling.extend_from_slice(sampling);
        self.sampling_starts.push(self.sampling.len() as i32);
        if let Some(output) = history {
            self.histories.extend_from_slice(prompt);
            self.histories.extend_from_slice(output);
        }
        self.history_starts.push(self.histories.len() as i32);
        self.prompt_lengths.push(prompt.len() as i32);
    }

    /// Sets the slot of the device for the adapter of the slot that was initialised last; none: it has no adapter.
    pub(crate) fn use_adapter(&mut self, slot: Option<u32>) {
        self.adapter_slots.push(slot.map_or(-1, |slot| slot as i32));
    }

    /// Copies an adapter into a slot of the device.
    pub(crate) fn load_adapter(&mut self, slot: u32, number: u32) {
        self.adapter_loads.extend([slot as i32, number as i32]);
    }

    pub(crate) fn change_table(&mut self, group: u32, slot: Slot, index: u32, block: BlockId) {
        self.table_slots.push((group * self.max_num_seqs + slot.0) as i32);
        self.table_indices.push(index as i32);
        self.table_blocks.push(block.0 as i32);
    }

    pub(crate) fn copy_block(&mut self, source: BlockId, destination: BlockId) {
        self.block_copies.extend([source.0 as i32, destination.0 as i32]);
    }

    pub(crate) fn copy_slot(&mut self, source: Slot, destination: Slot) {
        self.slot_copies.extend([source.0 as i32, destination.0 as i32]);
    }

    /// Adds a swap to the host. `name` has the hash of the block's contents, and its index in the chain.
    pub(crate) fn swap_out(&mut self, device: BlockId, host: HostBlockId, name: Option<(GroupHash, u32)>) {
        self.swaps.extend([0, device.0 as i32, host.0 as i32]);
        write_name(&mut self.swap_names, name);
    }

    pub(crate) fn swap_in(&mut self, host: HostBlockId, device: BlockId) {
        self.swaps.extend([1, device.0 as i32, host.0 as i32]);
    }

    /// Adds a swap of a state to the host. `name` as in `swap_out`.
    pub(crate) fn swap_out_state(&mut self, device: StateId, host: HostStateId, name: Option<(GroupHash, u32)>) {
        self.state_swaps.extend([0, device.0 as i32, host.0 as i32]);
        write_name(&mut self.state_swap_names, name);
    }

    pub(crate) fn swap_in_state(&mut self, host: HostStateId, device: StateId) {
        self.state_swaps.extend([1, device.0 as i32, host.0 as i32]);
    }

    /// Adds a position to sample, `before_last` tokens before the row's last token so far.
    pub(crate) fn sample_at(&mut self, before_last: u32, uniform: f32) {
        self.logits_rows.push(self.tokens.len() as i32 - 1 - before_last as i32);
        self.uniforms.push(uniform);
    }

    /// Sets the states that the row reads and writes.
    pub(crate) fn use_states(&mut self, source: i32, destination: i32) {
        self.state_sources.push(source);
        self.state_destinations.push(destination);
    }

    /// Ends the row that owns the tokens and samples since the row before.
    pub(crate) fn end_row(&mut self, slot: Slot, sequence_length: u32) {
        self.slots.push(slot.0 as i32);
        self.sequence_lengths.push(sequence_length as i32);
        self.query_starts.push(self.tokens.len() as i32);
        self.sampled_starts.push(self.uniforms.len() as i32);
    }

    pub(crate) fn finish(&self, step: StepId) -> Plan {
        let sections = [
            Section::Ints(&self.tokens),
            Section::Ints(&self.positions),
            Section::Groups(&self.slot_mappings),
            Section::Ints(&self.query_starts),
            Section::Ints(&self.sequence_lengths),
            Section::Ints(&self.slots),
            Section::Ints(&self.logits_rows),
            Section::Ints(&self.sampled_starts),
            Section::Floats(&self.uniforms),
            Section::Ints(&self.table_slots),
            Section::Ints(&self.table_indices),
            Section::Ints(&self.table_blocks),
            Section::Ints(&self.block_copies),
            Section::Ints(&self.swaps),
            Section::Ints(&self.slot_copies),
            Section::Ints(&self.slot_inits),
            Section::Ints(&self.sampling_starts),
            Section::Bytes(&self.sampling),
            Section::Ints(&self.history_starts),
            Section::Ints(&self.histories),
            Section::Ints(&self.prompt_lengths),
            Section::Ints(&self.state_sources),
            Section::Ints(&self.state_destinations),
            Section::Ints(&self.state_swaps),
            Section::Bytes(&self.swap_names),
            Section::Bytes(&self.state_swap_names),
            Section::Ints(&self.adapter_slots),
            Section::Ints(&self.adapter_loads),
        ];
        let size = sections.iter().fold(0, |end, section| aligned(end) + section.num_bytes());
        let mut buffer = Vec::with_capacity(size);
        // Most steps leave about half of the sections empty, and those add to the buffer's length alone.
        for section in sections.iter().filter(|section| section.len() > 0) {
            buffer.resize(aligned(buffer.len()), 0);
            section.append_to(&mut buffer);
        }
        buffer.resize(size, 0);
        Plan { step, counts: sections.map(|section| section.len() as u32), buffer }
    }
}

fn write_name(names: &mut Vec<u8>, name: Option<(GroupHash, u32)>) {
    let (hash, group, index) = match &name {
        Some((key, index)) => (*key.hash.as_bytes(), key.group, *index),
        None => ([0; 32], NO_GROUP, 0),
    };
    names.extend(hash);
    names.extend([group, index].into_iter().flat_map(u32::to_le_bytes));
}

enum Section<'a> {
    Ints(&'a [i32]),
    Groups(&'a [Vec<i32>]),
    Floats(&'a [f32]),
    Bytes(&'a [u8]),
}

impl Section<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Groups(values) => values.iter().map(Vec::len).sum(),
            Self::Floats(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }

    fn num_bytes(&self) -> usize {
        self.len() * if let Self::Bytes(_) = self { 1 } else { 4 }
    }

    /// Appends the values as they are in memory, which is little endian.
    fn append_to(&self, buffer: &mut Vec<u8>) {
        match self {
            Self::Ints(values) => buffer.extend_from_slice(bytemuck::cast_slice(values)),
            Self::Groups(values) => {
                values.iter().for_each(|values| buffer.extend_from_slice(bytemuck::cast_slice(values)));
            }
            Self::Floats(values) => buffer.extend_from_slice(bytemuck::cast_slice(values)),
            Self::Bytes(values) => buffer.extend_from_slice(values),
        }
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "plans are little endian, and sections are copied as they are");

fn aligned(offset: usize) -> usize {
    offset.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::BlockHash;

    #[test]
    fn sections_follow_one_another_at_multiples_of_64_bytes() {
        let mut draft = Draft::default();
        draft.clear();
        draft.tokens.extend(0..17);
        draft.sample_at(0, 0.5);
        draft.end_row(Slot(2), 40);
        draft.initialise_slot(Slot(2), b"abc", &[7, 8], Some(&[9]));
        let plan = draft.finish(StepId(9));
        assert_eq!(plan.counts, [17, 0, 0, 2, 1, 1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 2, 3, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((plan.num_tokens(), plan.num_rows()), (17, 1));
        // 17 int32 reach into the second 64 bytes; every other non-empty section takes 64.
        assert_eq!(plan.buffer[64..68], 16_i32.to_le_bytes());
        assert_eq!(plan.buffer[128..136], [0, 0, 0, 0, 17, 0, 0, 0]);
        assert_eq!(plan.buffer.len(), 2 * 64 + 12 * 64);
        assert!(plan.buffer[2 * 64 + 8 * 64..].starts_with(b"abc"));
        assert!(plan.buffer[2 * 64 + 11 * 64..].starts_with(&2_i32.to_le_bytes()));
    }

    #[test]
    fn each_swap_to_the_host_has_a_name_or_the_group_of_none() {
        let key = BlockHash::root(&["x"]).of(3);
        let mut draft = Draft::default();
        draft.clear();
        draft.swap_out(BlockId(1), HostBlockId(0), Some((key, 9)));
        draft.swap_out(BlockId(2), HostBlockId(1), None);
        draft.swap_in(HostBlockId(1), BlockId(4));
        draft.swap_out_state(StateId(1), HostStateId(0), Some((key, 9)));
        let plan = draft.finish(StepId(0));
        let state_names = plan.buffer.len() - ALIGNMENT;
        let names = &plan.buffer[state_names - 2 * ALIGNMENT..][..2 * SWAP_NAME_SIZE];
        let names: Vec<_> = names.chunks(SWAP_NAME_SIZE).collect();
        assert_eq!(plan.counts[SECTIONS.len() - 4..], [80, 40, 0, 0]);
        assert_eq!(&plan.buffer[state_names..][..SWAP_NAME_SIZE], names[0]);
        assert_eq!(names[0], [&key.hash.as_bytes()[..], &3_u32.to_le_bytes(), &9_u32.to_le_bytes()].concat());
        assert_eq!(names[1], [&[0; 32][..], &u32::MAX.to_le_bytes(), &[0; 4]].concat());
    }

    #[test]
    fn a_cleared_draft_carries_nothing_over() {
        let mut draft = Draft::default();
        draft.clear();
        let empty = draft.finish(StepId(0));
        draft.tokens.push(1);
        draft.sample_at(0, 0.5);
        draft.end_row(Slot(0), 1);
        draft.change_table(0, Slot(0), 0, BlockId(3));
        draft.copy_block(BlockId(1), BlockId(3));
        draft.copy_slot(Slot(1), Slot(0));
        draft.swap_out(BlockId(1), HostBlockId(0), None);
        draft.initialise_slot(Slot(1), b"x", &[1], Some(&[2]));
        draft.use_adapter(Some(1));
        draft.load_adapter(1, 7);
        draft.clear();
        assert_eq!(draft.finish(StepId(0)), empty);
    }
}
