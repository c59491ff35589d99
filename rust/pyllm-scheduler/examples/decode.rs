//! `decode ROWS STEPS`: takes so many steps in which so many rows decode, and does nothing else. What a step costs in
//! instructions is the difference of two runs under callgrind: `python -m benchmarks scheduler.step_instructions`.

use decoding::Decoding;

#[path = "../benches/scheduler/decoding.rs"]
mod decoding;

fn main() {
    let arguments: Result<Vec<u32>, _> = std::env::args().skip(1).map(|argument| argument.parse()).collect();
    let Ok(&[rows, steps]) = arguments.as_deref() else {
        eprintln!("usage: decode ROWS STEPS, two numbers");
        std::process::exit(2);
    };
    let mut decoding = Decoding::new(rows, steps);
    for _ in 0..steps {
        decoding.step();
    }
}
