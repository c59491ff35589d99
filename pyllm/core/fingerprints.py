"""Digests of what a core computes: one of all that decides a token, and one of all that decides keys and values.

Knows neither the scheduler nor a store.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pyllm.config.process_config import CoreConfig
from pyllm.families.kv_layout import KVGroup

# Raise it when keys and values of an earlier version mean something else, or lie in a block in another order.
_LAYOUT_VERSION = 1


class Fingerprints(NamedTuple):
    """`numerics` is `Ready.fingerprint`; `cache_namespace` has 64 hexadecimal digits, one namespace of KV blocks."""

    numerics: str
    cache_namespace: str


def fingerprints(
    config: CoreConfig, groups: Sequence[KVGroup], instruction_sets: Sequence[str], weights: str = ""
) -> Fingerprints:
    """Of a core whose ranks have these instruction sets; `groups` are the groups of layers.

    `weights` is a digest of all of them, which blocks that others may load need: the checkpoint's fingerprint knows
    models apart by the beginnings of their tensors.

    Two cores with the same namespace compute the same keys and values for the same tokens, and lay them out alike:
    weights, number formats, arithmetic, kernels, ranks, the size of a block and the layers of each group are in it.
    """
    engine, transformers = config.engine, config.checkpoint.spec.transformers
    implementation = "" if transformers is None else f"transformers {transformers.version}"
    precision = (engine.model.dtype, engine.model.quantization, engine.cache.kv_cache_dtype)
    kinds = sorted(set(instruction_sets))
    ranks = engine.parallel.tensor_parallel_size
    described = (config.checkpoint.fingerprint, config.checkpoint.spec)  # A config.json alone changes the tokens, too.
    sparse = engine.sparse if engine.sparse.sparse_attention else None
    numerics: tuple[Any, ...] = (described, precision, ranks, kinds, implementation, sparse)
    device = engine.device
    kernels = (device.kernel_backend, device.attention_backend, device.batch_invariant)
    layout = (engine.cache.block_size, [(group.window, group.layers) for group in groups])
    place = (engine.parallel.pipeline_parallel_size, engine.parallel.enable_expert_parallel)
    # How long the context may get changes the angles of some models.
    rest = (weights, _LAYOUT_VERSION, kernels, layout, place, engine.model.max_model_len)
    return Fingerprints(
        hashlib.blake2b(msgspec.json.encode(numerics), digest_size=16).hexdigest(),
        hashlib.sha256(msgspec.json.encode((numerics, rest))).hexdigest(),
    )
