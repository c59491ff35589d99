//! A load of any length: small requests of several clients and tenants, of mixed lengths and samples, many with a
//! common prefix, some aborted, in a KV cache that is often full. Has neither model nor clock: tokens and lengths come
//! from a generator with a fixed seed.

use pyllm_scheduler::{ALIGNMENT, ClientId, Config, Plan, Request, RequestId, SECTIONS, Scheduler};

const BLOCK_SIZE: u32 = 16;
const NUM_CLIENTS: u64 = 5;
const NUM_PREFIXES: u64 = 2000;
const MAX_LIVE: u64 = 400; // requests, some of them waiting
const STOP_TOKEN: i32 = 3;
const VOCABULARY: u64 = 500;

pub struct Load {
    scheduler: Scheduler,
    random: Random,
    now: f64,
    num_added: u64,
    /// Tokens that clients received.
    pub num_tokens: u64,
}

impl Load {
    pub fn new() -> Self {
        let scheduler = Scheduler::new(Config {
            block_size: BLOCK_SIZE,
            num_blocks: 768,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_model_len: 256,
            vocab_size: VOCABULARY as u32,
            enable_prefix_caching: true,
            ..Config::default()
        })
        .expect("the limits are in range");
        Self { scheduler, random: Random(1), now: 0.0, num_added: 0, num_tokens: 0 }
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Serves `number` more requests, to their ends.
    pub fn serve(&mut self, number: u64) {
        let end = self.num_added + number;
        loop {
            while self.num_added < end && self.scheduler.stats().num_requests < MAX_LIVE {
                self.add();
            }
            if self.random.below(4) == 0 {
                self.abort();
            }
            if !self.step() {
                break;
            }
        }
    }

    fn add(&mut self) {
        let random = &mut self.random;
        let id = self.num_added;
        self.num_added += 1;
        // A common prefix of a block or two, and a rest of its own.
        let prefix = random.below(NUM_PREFIXES);
        let num_shared = BLOCK_SIZE as i32 * (1 + (prefix % 2) as i32);
        let shared = (0..num_shared).map(|index| (index + prefix as i32) % VOCABULARY as i32);
        let own: Vec<i32> = (0..random.below(24)).map(|_| random.token()).collect();
        let request = Request {
            client: client(id),
            id: RequestId(id),
            prompt: shared.chain(own).collect(),
            n: if random.below(16) == 0 { 2 } else { 1 },
            seed: id,
            max_tokens: 1 + random.below(48) as u32,
            stop_token_ids: vec![STOP_TOKEN],
            arrival: self.now,
            priority: random.below(3) as i32,
            tenant: format!("tenant {}", prefix % 3),
            ..Request::default()
        };
        self.scheduler.add(request).expect("the request fits");
    }

    /// Aborts a recent request, which may have ended.
    fn abort(&mut self) {
        let id = self.num_added - 1 - self.random.below(MAX_LIVE).min(self.num_added - 1);
        self.scheduler.abort(client(id), RequestId(id), None);
    }

    /// Plans and commits a step, and takes the deltas. False: there is nothing to do.
    fn step(&mut self) -> bool {
        self.now += 0.01;
        let Some(plan) = self.scheduler.schedule(self.now).expect("time goes forward") else { return false };
        let starts = sampled_starts(&plan);
        let num_sampled = starts.last().map_or(0, |&end| end as usize);
        let tokens: Vec<i32> = (0..num_sampled).map(|_| self.random.token()).collect();
        self.scheduler.commit(plan.step, &starts, &tokens, 0.0, None, None).expect("the step is in flight");
        for client in self.scheduler.pending_clients().to_vec() {
            let deltas = self.scheduler.take_deltas(client).expect("there are deltas");
            self.num_tokens += deltas.tokens.len() as u64;
        }
        true
    }
}

fn client(request: u64) -> ClientId {
    ClientId((request % NUM_CLIENTS) as u32)
}

/// The start of each row's sampled tokens, by the plan.
fn sampled_starts(plan: &Plan) -> Vec<i32> {
    let mut end = 0_usize;
    for ((name, element), count) in SECTIONS.into_iter().zip(plan.counts) {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + count as usize * if element == 'B' { 1 } else { 4 };
        if name == "sampled_starts" {
            let words = plan.buffer[start..end].chunks_exact(4);
            return words.map(|word| i32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
        }
    }
    unreachable!("every plan has this section")
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (value ^ value >> 31) % limit
    }

    fn token(&mut self) -> i32 {
        self.below(VOCABULARY) as i32
    }
}
