//! Promises of each policy and setting, tested from outside: invariants under random loads, decisions by small cases.

mod fair;
mod newcomers;
mod pausing;
mod speculation;
mod starvation;
mod priority;
mod way;
mod shortest;
mod prefills;
mod drafts;
mod loading;
mod admission;
mod preemption;
mod isolation;
mod adapters;
mod endings;
mod switching;
mod reasons;
mod reports;
mod recordings;
mod pipeline;

mod cases;
mod engine;
