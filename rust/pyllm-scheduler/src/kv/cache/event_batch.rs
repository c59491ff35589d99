//! Events of the KV cache as vLLM publishes them: a batch is the msgpack array `[seconds, events, rank]`
//! (`vllm/distributed/kv_events.py`). Knows no sockets.

use rmp::encode::{self, ByteBuf};
use serde::Deserialize;

use crate::block_hash::BlockHash;
use crate::config::Config;
use crate::kv::cache::events::{KvEvent, Tier};

/// Encoding of a batch. Each option has consumers for both values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchFormat {
    /// Index of this core among those behind one address.
    pub rank: u32,
    /// An event is an array whose first element is its type, as before vLLM 0.28. Else a map with the key `type`.
    pub is_array: bool,
    /// A hash is the integer of its last 8 bytes, as vLLM's default is. Else its 32 bytes.
    pub has_integer_hashes: bool,
    /// Whether events have the tokens of blocks, which are the users' texts.
    pub has_tokens: bool,
}

/// Events before number `next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The number of the first later event.
    pub next: u64,
    /// The batch in msgpack.
    pub payload: Vec<u8>,
}

/// Blocks of one event of vLLM.
enum Run<'a> {
    Stored {
        parent: Option<BlockHash>,
        hashes: Vec<BlockHash>,
        tokens: Vec<&'a [i32]>,
        adapter: &'a str,
        tier: Tier,
        group: u32,
    },
    Removed {
        hashes: Vec<BlockHash>,
        tier: Tier,
        group: u32,
    },
    Cleared,
}

impl BatchFormat {
    /// Encodes events as one batch. Blocks that follow each other in a chain share one event.
    pub(crate) fn encode<'a>(
        self,
        events: impl Iterator<Item = &'a KvEvent>,
        config: &Config,
        seconds: f64,
    ) -> Vec<u8> {
        let num_groups = config.kv_groups.len() as u32;
        // An array has no group, so that a state would be taken for a block.
        let events = events.filter(|event| !self.is_array || event.group().is_none_or(|group| group < num_groups));
        let runs = runs(events);
        let mut out = ByteBuf::new();
        array(&mut out, 3);
        done(encode::write_f64(&mut out, seconds));
        array(&mut out, runs.len());
        for run in &runs {
            self.write(&mut out, run, config);
        }
        integer(&mut out, u64::from(self.rank));
        out.into_vec()
    }

    fn write(self, out: &mut ByteBuf, run: &Run<'_>, config: &Config) {
        let groups = &config.kv_groups;
        // Consumers expect one group unless events name several.
        let is_grouped = !self.is_array && (groups.len() > 1 || config.num_states > 0);
        match run {
            Run::Stored { parent, hashes, tokens, adapter, tier, group } => {
                let window = groups.get(*group as usize).and_then(|group| group.window);
                let num_group_fields = 2 + usize::from(window.is_some());
                self.begin(out, "BlockStored", 7 + if is_grouped { num_group_fields } else { 0 });
                self.key(out, "block_hashes");
                self.hashes(out, hashes);
                self.key(out, "parent_block_hash");
                match parent {
                    Some(parent) => self.hash(out, parent),
                    None => null(out),
                }
                self.key(out, "token_ids");
                let tokens = if self.has_tokens { tokens.concat() } else { Vec::new() };
                array(out, tokens.len());
                for token in tokens {
                    integer(out, token as u64);
                }
                self.key(out, "block_size");
                integer(out, u64::from(config.block_size));
                self.key(out, "lora_id");
                null(out);
                self.key(out, "medium");
                text(out, medium(*tier));
                self.key(out, "lora_name");
                if adapter.is_empty() {
                    null(out);
                } else {
                    text(out, adapter);
                }
                if is_grouped {
                    self.key(out, "group_idx");
                    integer(out, u64::from(*group));
                    self.key(out, "kv_cache_spec_kind");
                    let is_state = *group as usize == groups.len();
                    text(out, if is_state { "mamba" } else { attention_kind(window) });
                    if let Some(window) = window {
                        self.key(out, "kv_cache_spec_sliding_window");
                        integer(out, u64::from(window));
                    }
                }
            }
            Run::Removed { hashes, tier, group } => {
                self.begin(out, "BlockRemoved", 2 + usize::from(is_grouped));
                self.key(out, "block_hashes");
                self.hashes(out, hashes);
                self.key(out, "medium");
                text(out, medium(*tier));
                if is_grouped {
                    self.key(out, "group_idx");
                    integer(out, u64::from(*group));
                }
            }
            Run::Cleared => self.begin(out, "AllBlocksCleared", 0),
        }
    }

    fn begin(self, out: &mut ByteBuf, kind: &str, num_fields: usize) {
        let length = num_fields + 1;
        if self.is_array {
            array(out, length);
        } else {
            done(encode::write_map_len(out, length as u32).map(drop));
        }
        self.key(out, "type");
        text(out, kind);
    }

    fn key(self, out: &mut ByteBuf, name: &str) {
        if !self.is_array {
            text(out, name);
        }
    }

    fn hashes(self, out: &mut ByteBuf, hashes: &[BlockHash]) {
        array(out, hashes.len());
        for hash in hashes {
            self.hash(out, hash);
        }
    }

    fn hash(self, out: &mut ByteBuf, hash: &BlockHash) {
        if self.has_integer_hashes {
            let mut last = [0; 8];
            last.copy_from_slice(&hash.as_bytes()[24..]);
            integer(out, u64::from_be_bytes(last));
        } else {
            done(encode::write_bin(out, hash.as_bytes()));
        }
    }
}

fn runs<'a>(events: impl Iterator<Item = &'a KvEvent>) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for event in events {
        match (event, runs.last_mut()) {
            (
                KvEvent::Stored { hash, parent: Some(parent), tokens: new, tier, group, .. },
                Some(Run::Stored { hashes, tokens, tier: of, group: in_group, .. }),
            ) if hashes.last() == Some(parent) && (tier, group) == (&*of, &*in_group) => {
                hashes.push(*hash);
                tokens.push(new);
            }
            (KvEvent::Removed { hash, tier, group }, Some(Run::Removed { hashes, tier: of, group: in_group }))
                if (tier, group) == (&*of, &*in_group) =>
            {
                hashes.push(*hash);
            }
            (KvEvent::Stored { hash, parent, tokens, adapter, tier, group }, _) => runs.push(Run::Stored {
                parent: *parent,
                hashes: vec![*hash],
                tokens: vec![tokens],
                adapter,
                tier: *tier,
                group: *group,
            }),
            (KvEvent::Removed { hash, tier, group }, _) => {
                runs.push(Run::Removed { hashes: vec![*hash], tier: *tier, group: *group });
            }
            (KvEvent::Cleared, _) => runs.push(Run::Cleared),
        }
    }
    runs
}

fn attention_kind(window: Option<u32>) -> &'static str {
    if window.is_some() { "sliding_window" } else { "full_attention" }
}

/// vLLM's names: routers prefer `GPU`, on any device.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
    }
}

fn array(out: &mut ByteBuf, length: usize) {
    done(encode::write_array_len(out, length as u32).map(drop));
}

fn integer(out: &mut ByteBuf, value: u64) {
    done(encode::write_uint(out, value).map(drop));
}

fn text(out: &mut ByteBuf, value: &str) {
    done(encode::write_str(out, value));
}

fn null(out: &mut ByteBuf) {
    let Ok(()) = encode::write_nil(out);
}

fn done<E: std::fmt::Debug>(result: Result<(), E>) {
    result.expect("memory takes every byte");
}
