//! The scheduler tested from outside: its decisions, and invariants under any calls. The simulation for the properties
//! is written for clarity only: every answer is known when a request is added.

mod decisions;
mod properties;

mod world;
mod calls;
mod device;
mod names;
mod oracle;
mod sections;
