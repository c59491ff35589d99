//! A world around the scheduler in which every answer is known beforehand: written for clarity alone.

pub mod calls;
pub mod device;
pub mod oracle;
pub mod sections;
pub mod world;
