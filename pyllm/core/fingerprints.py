"""Digests of a core's numerics: one of all that decides tokens, and one of all that decides keys and values.

Knows neither the scheduler nor a store.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pyllm.config.process_config import CoreConfig
from pyllm.families.kv_layout import KVGroup

# Increase it when keys and values of an earlier version have another meaning, or another order in a block.
_LAYOUT_VERSION = 1


class Fingerprints(NamedTuple):
    """`numerics` is `Ready.fingerprint`; `cache_namespace`, 64 hexadecimal digits, is the namespace of KV blocks."""

    numerics: str
    cache_namespace: str


def fingerprints(
    config: CoreConfig, groups: Sequence[KVGroup], instruction_sets: Sequence[str], weights: str = ""
) -> Fingerprints:
    """The fingerprints of a core whose ranks have these instruction sets; `groups` are the groups of layers.

    `weights` is a digest of all weights, needed if other engines may load the blocks: the checkpoint's fingerprint
    covers only the beginnings of tensors.

    Two cores with the same namespace compute the same keys and values for the same tokens, in the same layout: it
    covers weights, number formats, arithmetic, kernels, ranks, the block size and the layers of each group.
    """
    engine, transformers = config.engine, config.checkpoint.spec.transformers
    implementation = "" if transformers is None else f"transformers {transformers.version}"
    precision = (engine.model.dtype, engine.model.quantization, engine.cache.kv_cache_dtype)
    kinds = sorted(set(instruction_sets))
    ranks = engine.parallel.tensor_parallel_size
    described = (config.checkpoint.fingerprint, config.checkpoint.spec)  # config.json alone can change the tokens
    sparse = engine.sparse if engine.sparse.sparse_attention else None
    numerics: tuple[Any, ...] = (described, precision, ranks, kinds, implementation, sparse)
    device = engine.device
    kernels = (device.kernel_backend, device.attention_backend, device.batch_invariant)
    layout = (engine.cache.block_size, [(group.window, group.layers) for group in groups])
    place = (engine.parallel.pipeline_parallel_size, engine.parallel.enable_expert_parallel)
    # The maximum context length changes the rotary angles of some models.
    rest = (weights, _LAYOUT_VERSION, kernels, layout, place, engine.model.max_model_len)
    return Fingerprints(
        hashlib.blake2b(msgspec.json.encode(numerics), digest_size=16).hexdigest(),
        hashlib.sha256(msgspec.json.encode((numerics, rest))).hexdigest(),
    )
