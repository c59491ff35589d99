//! Decodes, step after step, each with 1,024 tokens of context at first; the prefix cache is on. Reads no clock.

use pyllm_scheduler::{ClientId, Config, KvGroup, Request, RequestId, Scheduler};

const BLOCK_SIZE: u32 = 16;
const CONTEXT: u32 = 1024;
const WINDOW: u32 = 512;

pub struct Decoding {
    scheduler: Scheduler,
    tokens: Vec<i32>,
}

impl Decoding {
    /// Prepares `rows` requests for up to `steps` steps. All groups of layers except the first have a window; with
    /// `has_states` each sequence also has a state, which its checkpoints leave as it was.
    pub fn new(rows: u32, steps: u32, num_groups: u32, has_states: bool) -> Self {
        let max_tokens = steps + 2; // the prefill samples one, and the last step must not end a request
        let mut scheduler = Scheduler::new(Config {
            block_size: BLOCK_SIZE,
            kv_groups: (0..num_groups).map(|group| KvGroup { window: (group > 0).then_some(WINDOW) }).collect(),
            num_blocks: num_groups * rows * (CONTEXT + max_tokens).div_ceil(BLOCK_SIZE),
            max_num_seqs: rows,
            max_num_batched_tokens: rows * CONTEXT,
            max_model_len: CONTEXT + max_tokens,
            vocab_size: 1 << 20,
            enable_prefix_caching: true,
            num_states: if has_states { 4 * rows } else { 0 },
            ..Config::default()
        })
        .expect("the limits are in range");
        for row in 0..rows {
            let prompt = std::iter::once(row + 1).chain(0..CONTEXT - 1).map(|token| token as i32).collect();
            let id = RequestId(u64::from(row));
            let request = Request { client: ClientId(0), id, prompt, n: 1, max_tokens, ..Request::default() };
            scheduler.add(request).expect("the request fits");
        }
        let mut decoding = Self { scheduler, tokens: vec![7; rows as usize] };
        decoding.step(); // computes the prompts, all at once
        decoding
    }

    /// Plans a step of all rows, commits a token for each, and takes the deltas.
    pub fn step(&mut self) {
        let plan = self.scheduler.schedule(0.0).expect("time stands still").expect("rows decode");
        // A prompt with a state has a row up to its checkpoint, and one that samples.
        let rows_of_each = plan.num_rows() as usize / self.tokens.len();
        let starts: Vec<i32> = (0..=plan.num_rows() as usize).map(|row| (row / rows_of_each) as i32).collect();
        self.scheduler.commit(plan.step, &starts, &self.tokens, 0.0, None, None).expect("every row samples one token");
        self.scheduler.take_deltas(ClientId(0)).expect("there are deltas");
    }
}
