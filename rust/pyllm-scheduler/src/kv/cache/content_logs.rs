//! The two logs of known contents, kept together: events for routers, and changes for placements. Knows no tier's memory.

use crate::block_hash::{Content, GroupHash};
use crate::kv::cache::changes::{Change, ChangeLog};
use crate::kv::cache::events::{EventLog, Tier};

pub(crate) struct ContentLogs {
    pub(crate) events: EventLog,
    pub(crate) changes: ChangeLog,
}

impl ContentLogs {
    /// Logs new contents on the device.
    pub(crate) fn stored(&mut self, group: u32, content: &Content<'_>) {
        self.events.stored(group, content);
        self.changes.push(Change::Stored(content.hash.of(group).short()));
    }

    /// Logs that contents of the device are on the host as well.
    pub(crate) fn copied(&mut self, key: GroupHash) {
        self.events.copied(key);
        // They are known already, but a snapshot under way may be past the device's and miss the host's.
        self.changes.push(Change::Stored(key.short()));
    }

    /// Logs restored contents of the host.
    pub(crate) fn restored(&mut self, key: GroupHash) {
        self.events.restored(key);
        self.changes.push(Change::Stored(key.short()));
    }

    /// Logs that a tier has lost these contents. `is_known`: whether the other tier has them.
    pub(crate) fn removed(&mut self, key: GroupHash, tier: Tier, is_known: impl FnOnce() -> bool) {
        self.events.removed(key, tier);
        if self.changes.is_kept() && !is_known() {
            self.changes.push(Change::Removed(key.short()));
        }
    }

    /// Logs that all contents were forgotten.
    pub(crate) fn cleared(&mut self) {
        self.events.cleared();
        self.changes.push(Change::Cleared);
    }
}
