//! A million small requests through the scheduler, and the memory of this process (Linux) after every 100,000 of them,
//! one line each: `requests megabytes`. `python -m benchmarks memory.growth` prints the first and the last.

use load::Load;

#[path = "../tests/load/load.rs"]
mod load;

const REQUESTS: u64 = 1_000_000;
const EVERY: u64 = 100_000;

fn main() {
    let mut load = Load::new();
    for served in (EVERY..=REQUESTS).step_by(EVERY as usize) {
        load.serve(EVERY);
        println!("{served} {:.2}", resident_megabytes());
    }
    let stats = load.scheduler().stats();
    assert_eq!((stats.num_used_blocks, stats.num_requests), (0, 0), "something is left: {stats:?}");
    eprintln!("{} tokens; {stats:?}", load.num_tokens);
}

/// `VmRSS`, in MB (10^6 bytes).
fn resident_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux keeps it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the line is there");
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kilobytes * 1024.0 / 1e6
}
