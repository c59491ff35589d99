//! `decode ROWS STEPS GROUPS STATES`: runs STEPS steps in which ROWS rows decode, of a model with GROUPS groups of layers,
//! and if STATES is 1 with a state for each sequence. The
//! instructions of a step are the difference of two runs under callgrind: `python -m benchmarks
//! scheduler.step_instructions`.

use decoding::Decoding;

#[path = "../benches/scheduler/decoding.rs"]
mod decoding;

fn main() {
    let arguments: Result<Vec<u32>, _> = std::env::args().skip(1).map(|argument| argument.parse()).collect();
    let Ok(&[rows, steps, num_groups, states]) = arguments.as_deref() else {
        eprintln!("usage: decode ROWS STEPS GROUPS STATES, four numbers");
        std::process::exit(2);
    };
    let mut decoding = Decoding::new(rows, steps, num_groups, states == 1);
    for _ in 0..steps {
        decoding.step();
    }
}
