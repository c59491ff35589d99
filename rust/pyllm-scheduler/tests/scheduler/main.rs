//! The scheduler from outside: what it decides, and what holds whatever is asked of it. The world that the properties
//! are checked in is written for clarity alone: every answer is known when a request is added.

mod decisions;
mod properties;

mod world;
mod calls;
mod device;
mod names;
mod oracle;
mod sections;
