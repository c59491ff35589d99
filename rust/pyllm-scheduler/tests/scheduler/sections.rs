//! A plan parsed by the published list of sections only.

use std::collections::HashMap;

use pyllm_scheduler::{ALIGNMENT, Plan, SECTIONS, SWAP_NAME_SIZE};

use crate::names::Name;

pub struct Sections {
    ints: HashMap<&'static str, Vec<i32>>,
    pub uniforms: Vec<f32>,
    sampling: Vec<u8>,
    swap_names: Vec<u8>,
    state_swap_names: Vec<u8>,
}

/// One copy of a block or a state between the device and the host.
pub struct Swap {
    pub from_host: bool,
    pub block: usize,
    pub host: usize,
    /// For a swap to the host: the name, the group and the index in the chain of its contents, if they have a name.
    pub name: Option<(Name, u32, u32)>,
}

impl Sections {
    pub fn new(plan: &Plan) -> Self {
        let mut sections = Self {
            ints: HashMap::new(),
            uniforms: Vec::new(),
            sampling: Vec::new(),
            swap_names: Vec::new(),
            state_swap_names: Vec::new(),
        };
        let mut end = 0_usize;
        for ((name, element), count) in SECTIONS.into_iter().zip(plan.counts) {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + count as usize * if element == 'B' { 1 } else { 4 };
            let bytes = &plan.buffer[start..end];
            let words = bytes.chunks_exact(4).map(|word| <[u8; 4]>::try_from(word).expect("four bytes"));
            match element {
                'i' => drop(sections.ints.insert(name, words.map(i32::from_le_bytes).collect())),
                'f' => sections.uniforms = words.map(f32::from_le_bytes).collect(),
                'B' if name == "swap_names" => sections.swap_names = bytes.to_vec(),
                'B' if name == "state_swap_names" => sections.state_swap_names = bytes.to_vec(),
                'B' => sections.sampling = bytes.to_vec(),
                other => panic!("section {name} has elements {other:?}"),
            }
        }
        assert_eq!(end, plan.buffer.len(), "the buffer ends with its last section");
        sections
    }

    pub fn ints(&self, name: &str) -> &[i32] {
        &self.ints[name]
    }

    /// A section of `starts`, as one range per row.
    pub fn ranges(&self, name: &str) -> Vec<std::ops::Range<usize>> {
        let starts = self.ints(name);
        assert_eq!(starts[0], 0, "{name} begins at 0");
        starts.windows(2).map(|window| window[0] as usize..window[1] as usize).collect()
    }

    pub fn pairs(&self, name: &str) -> Vec<(usize, usize)> {
        self.ints(name).chunks_exact(2).map(|pair| (pair[0] as usize, pair[1] as usize)).collect()
    }

    pub fn swaps(&self) -> Vec<Swap> {
        self.swaps_of("swaps", &self.swap_names)
    }

    pub fn state_swaps(&self) -> Vec<Swap> {
        self.swaps_of("state_swaps", &self.state_swap_names)
    }

    fn swaps_of(&self, section: &str, names: &[u8]) -> Vec<Swap> {
        let mut names = names.chunks_exact(SWAP_NAME_SIZE);
        let swaps = self.ints(section).chunks_exact(3).map(|swap| {
            let from_host = swap[0] == 1;
            let name =
                if from_host { None } else { read_name(names.next().expect("each swap to the host has a name")) };
            Swap { from_host, block: swap[1] as usize, host: swap[2] as usize, name }
        });
        let swaps = swaps.collect();
        assert!(names.next().is_none() && names.remainder().is_empty(), "and no other has one");
        swaps
    }

    /// The blocks that it writes to: tokens, copies, and swaps from the host.
    pub fn written_blocks(&self, block_size: u32) -> impl Iterator<Item = usize> {
        let places = self.ints("slot_mapping").iter().map(move |&place| (place as u32 / block_size) as usize);
        let copies = self.pairs("block_copies").into_iter().map(|copy| copy.1);
        places.chain(copies).chain(self.swaps().into_iter().filter(|swap| swap.from_host).map(|swap| swap.block))
    }

    /// The initialised slots, each with its request's sampling bytes.
    pub fn slot_inits(&self) -> Vec<(usize, &[u8])> {
        let ranges = self.ranges("sampling_starts").into_iter();
        let slots = self.ints("slot_inits").iter().map(|&slot| slot as usize);
        slots.zip(ranges.map(|range| &self.sampling[range])).collect()
    }

    /// The earlier tokens for each initialised slot: those of the prompt, and the output.
    pub fn histories(&self) -> Vec<(&[i32], &[i32])> {
        let histories = self.ranges("history_starts").into_iter().map(|range| &self.ints("histories")[range]);
        histories
            .zip(self.ints("prompt_lengths"))
            .map(|(history, &prompt)| history.split_at((prompt as usize).min(history.len())))
            .collect()
    }
}

fn read_name(bytes: &[u8]) -> Option<(Name, u32, u32)> {
    let (name, rest) = bytes.split_first_chunk::<32>().expect("a name begins with a hash");
    let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
    (word(0) != u32::MAX).then(|| (*name, word(0), word(4)))
}
