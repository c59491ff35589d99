//! The names of blocks' contents, computed as by an external router.

use pyllm_scheduler::{Config, Request};

pub type Name = [u8; 32];

/// The names of a prompt's full blocks.
pub fn chain(request: &Request, config: &Config) -> Vec<Name> {
    let blocks = request.prompt.chunks_exact(config.block_size as usize);
    let names = blocks.scan(root(request, config), |parent, tokens| {
        *parent = child(*parent, tokens);
        Some(*parent)
    });
    names.collect()
}

/// The parent of a first block.
pub fn root(request: &Request, config: &Config) -> Name {
    let mut hasher = blake3::Hasher::new_derive_key("pyllm 2026 prefix cache root: namespace, extra keys");
    for key in
        [&config.cache_namespace, &request.tenant, &request.cache_salt, &request.adapter, &config.weights_version]
    {
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

pub fn child(parent: Name, tokens: &[i32]) -> Name {
    let tokens = tokens.iter().flat_map(|token| token.to_le_bytes());
    *blake3::keyed_hash(&parent, &tokens.collect::<Vec<_>>()).as_bytes()
}
