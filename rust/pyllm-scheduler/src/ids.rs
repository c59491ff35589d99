//! Ids: one newtype per kind, so that a slot is never mistaken for a block.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

id! {
    /// A client of the core, numbered by the caller.
    ClientId(u32)
}
id! {
    /// A request of one client, chosen by that client and never used again.
    RequestId(u64)
}
id! {
    /// A planned step, counted from 0. Ids grow by one and are not reused, whatever happens to the device.
    StepId(u64)
}
id! {
    /// A block of the KV cache, from 0 to `num_blocks` - 1.
    BlockId(u32)
}
id! {
    /// A worker's storage for one running sequence, from 0 to `max_num_seqs` - 1.
    Slot(u32)
}
id! {
    /// A block of the host pool, from 0 to `num_host_blocks` - 1.
    HostBlockId(u32)
}

id! {
    /// The state of a sequence's layers after some of its tokens, from 0 to `num_states` - 1.
    StateId(u32)
}

id! {
    /// A state in host memory, from 0 to `num_host_states` - 1.
    HostStateId(u32)
}

id! {
    /// A load of keys and values from an external store, counted from 0.
    LoadId(u64)
}

id! {
    /// A save of one block's keys and values, counted from 0.
    SaveId(u64)
}

/// A block or a state of the device or of the host, so that one pool type serves all.
pub(crate) trait Block: Copy + PartialEq + fmt::Display {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

impl Block for BlockId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Block for StateId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Block for HostStateId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Block for HostBlockId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}
