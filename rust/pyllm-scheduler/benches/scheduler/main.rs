//! Times of the scheduler's calls, by `cargo bench`. `python -m benchmarks scheduler` times them through Python, and
//! counts the instructions of the same steps.

#![expect(missing_docs, reason = "criterion's macros make public functions")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pyllm_scheduler::{Config, Request, RequestId, Scheduler};

use decoding::Decoding;

mod decoding;

const STEPS: u32 = 512; // before the rows restart
const PROMPT_TOKENS: i32 = 8000;

fn step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for (rows, num_groups) in [(64, 1), (256, 1), (1024, 1), (64, 6), (256, 6), (1024, 6)] {
        group.throughput(Throughput::Elements(u64::from(rows)));
        group.bench_function(BenchmarkId::new(format!("{num_groups} groups"), rows), |bencher| {
            bencher.iter_custom(|iterations| time_steps(rows, num_groups, iterations));
        });
    }
}

fn time_steps(rows: u32, num_groups: u32, iterations: u64) -> Duration {
    let mut elapsed = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let steps = left.min(u64::from(STEPS)) as u32;
        let mut decoding = Decoding::new(rows, steps, num_groups, false);
        let begin = Instant::now();
        for _ in 0..steps {
            decoding.step();
        }
        elapsed += begin.elapsed();
        left -= u64::from(steps);
    }
    elapsed
}

fn add(criterion: &mut Criterion) {
    criterion.bench_function(&format!("add/{PROMPT_TOKENS}"), |bencher| {
        bencher.iter_batched_ref(|| (scheduler(), request(0)), add_one, BatchSize::PerIteration);
    });
}

fn add_one((scheduler, request): &mut (Scheduler, Request)) {
    scheduler.add(std::mem::take(request)).expect("the request fits");
}

/// The step that admits a prompt whose blocks are cached, except the last token's.
fn admit_cached(criterion: &mut Criterion) {
    criterion.bench_function(&format!("admit_cached/{PROMPT_TOKENS}"), |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut scheduler = scheduler();
                scheduler.add(request(0)).expect("the request fits");
                let plan = scheduler.schedule(0.0).expect("time stands still").expect("a request waits");
                scheduler.commit(plan.step, &[0, 1], &[7], 0.0, None, None).expect("the prompt samples one token");
                scheduler.add(request(1)).expect("the request fits");
                scheduler
            },
            |scheduler| scheduler.schedule(0.0),
            BatchSize::PerIteration,
        );
    });
}

fn request(id: u64) -> Request {
    let prompt = (0..PROMPT_TOKENS).collect();
    Request { id: RequestId(id), prompt, n: 1, max_tokens: 1, ..Request::default() }
}

fn scheduler() -> Scheduler {
    let config = Config {
        block_size: 16,
        num_blocks: 2048,
        max_num_seqs: 8,
        max_num_batched_tokens: 8192,
        max_model_len: 16384,
        vocab_size: 1 << 20,
        enable_prefix_caching: true,
        ..Config::default()
    };
    Scheduler::new(config).expect("the limits are in range")
}

criterion_group!(benches, step, add, admit_cached);
criterion_main!(benches);
