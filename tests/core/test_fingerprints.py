"""Digests of a core: what changes keys and values changes the namespace of their blocks, and nothing else does."""

from typing import Any

import msgspec
import pytest

from benchmarks.engine.step import core_config
from pyllm.config.process_config import CoreConfig
from pyllm.core.fingerprints import fingerprints
from pyllm.families.kv_layout import KVGroup

GROUPS = (KVGroup(None, (0, 1), (2, 8)),)


def changed(config: CoreConfig, part: str, **values: Any) -> CoreConfig:
    settings = msgspec.structs.replace(getattr(config.engine, part), **values)
    return msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, **{part: settings}))


@pytest.mark.parametrize(
    ("part", "values", "changes_numerics"),
    [
        ("model", {"dtype": "bfloat16"}, True),
        ("cache", {"kv_cache_dtype": "float16"}, True),
        ("parallel", {"tensor_parallel_size": 2}, True),
        ("sparse", {"sparse_attention": "quest"}, True),
        ("cache", {"block_size": 32}, False),
        ("device", {"kernel_backend": "reference"}, False),
        ("model", {"max_model_len": 77}, False),
    ],
)
def test_what_changes_blocks_changes_their_namespace(
    tmp_path: Any, part: str, values: dict[str, Any], changes_numerics: bool
) -> None:
    config = core_config(str(tmp_path))
    before, after = (fingerprints(one, GROUPS, ["avx2"]) for one in (config, changed(config, part, **values)))
    assert before.cache_namespace != after.cache_namespace
    assert (before.numerics != after.numerics) == changes_numerics


def test_each_setting_of_sparse_attention_makes_other_blocks_while_it_is_on(tmp_path: Any) -> None:
    dense = core_config(str(tmp_path))
    quest = changed(dense, "sparse", sparse_attention="quest")
    others: list[dict[str, Any]] = [{"sparse_attention": "mean"}]
    numbers = msgspec.structs.asdict(dense.engine.sparse).items()
    others += [{name: value + 1} for name, value in numbers if isinstance(value, int)]
    configs = [dense, quest, *(changed(quest, "sparse", **values) for values in others)]
    assert len({fingerprints(config, GROUPS, ["avx2"]) for config in configs}) == 2 + len(others)


def test_machines_layers_and_weights_are_in_it_and_what_only_schedules_is_not(tmp_path: Any) -> None:
    config = core_config(str(tmp_path))
    before = fingerprints(config, GROUPS, ["avx2", "avx2"])
    assert len(bytes.fromhex(before.cache_namespace)) == 32
    assert fingerprints(config, GROUPS, ["avx2"]) == before
    assert fingerprints(changed(config, "scheduler", max_num_seqs=3), GROUPS, ["avx2"]) == before
    weights = msgspec.structs.replace(config.checkpoint, fingerprint="other weights")
    others = [
        fingerprints(config, (KVGroup(9, (0, 1), (2, 8)),), ["avx2"]),
        fingerprints(config, GROUPS, ["avx512"]),
        fingerprints(msgspec.structs.replace(config, checkpoint=weights), GROUPS, ["avx2"]),
        fingerprints(config, GROUPS, ["avx2"], "a digest of all weights"),
    ]
    assert len({before.cache_namespace, *(other.cache_namespace for other in others)}) == 5
