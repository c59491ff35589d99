"""What models need, beside what their workers take."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.check.model_needs import needs_of_model
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.launch.memory_check import kv_bytes
from pyllm.launch.resolve import resolve_settings
from tests.families.tiny_families import write_tiny_family
from tests.tiny_model import write_tiny_model

GIB = 1 << 30


def test_the_embedded_model_on_a_cpu() -> None:
    engine, checkpoint = resolve_settings(engine_config({"device": "cpu", "kv_cache_memory_bytes": "64MiB"}))
    needs = needs_of_model(engine, checkpoint, [8 * GIB, 4 * GIB])
    assert (needs.parameters, needs.device, needs.context, needs.memory_bytes) == (134_515_008, "cpu", 8192, 4 * GIB)
    assert needs.kv_bytes_per_token == 2 * 30 * 192 * 2
    assert needs.context_bytes == 8192 * needs.kv_bytes_per_token
    assert needs.room_bytes == 4 * GIB - needs.weights_bytes - needs.process_bytes - needs.table_bytes
    # 64 MiB hold 2,912 tokens of 23,040 bytes, in blocks of 16.
    assert needs.longest_context == 2912
    assert [(fit.context, fit.sequences) for fit in needs.fits] == [(1024, 2), (4096, 0), (8192, 0)]
    assert [fit.most_sequences for fit in needs.fits] == [
        min(128, needs.room_bytes // (fit.context * needs.kv_bytes_per_token)) for fit in needs.fits
    ]


def test_a_model_without_attention_needs_states_alone(tmp_path: Path) -> None:
    model = write_tiny_family(tmp_path, "mamba")
    engine, checkpoint = resolve_settings(
        engine_config({"model": model, "device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": "64KiB"})
    )
    needs = needs_of_model(engine, checkpoint, [4 * GIB])
    # Two states of three layers, each the last 3 inputs of 64 features and 12 numbers a feature.
    assert needs.context_bytes == 2 * 3 * 4 * 64 * (3 + 12)
    assert (needs.longest_context, needs.fits[-1].sequences) == (256, (64 << 10) // needs.context_bytes)


def test_a_model_that_does_not_fit_has_no_room(tmp_path: Path) -> None:
    engine, checkpoint = resolve_settings(engine_config({"model": write_tiny_model(tmp_path), "device": "cpu"}))
    for memories in ([1 << 20], []):
        needs = needs_of_model(engine, checkpoint, memories)
        assert needs.room_bytes < 0
        assert needs.longest_context == 0
        assert {(fit.sequences, fit.most_sequences) for fit in needs.fits} == {(0, 0)}


def test_cards_share_weights_and_keep_room_for_a_step(tmp_path: Path) -> None:
    engine, checkpoint = resolve_settings(
        engine_config({"model": write_tiny_model(tmp_path), "device": "cpu", "tensor_parallel_size": 3})
    )
    engine = msgspec.structs.replace(engine, device=msgspec.structs.replace(engine.device, device="cuda"))
    needs = needs_of_model(engine, checkpoint, [GIB, 2 * GIB, 2 * GIB])
    assert needs.process_bytes == 0
    assert needs.activation_bytes > 0
    share = int(GIB * 0.9) - needs.activation_bytes
    assert needs.room_bytes == needs.cache_bytes == 3 * share - needs.weights_bytes - needs.table_bytes
    assert needs.longest_context == needs.context == 512


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[EngineConfig, Checkpoint]:
    """A model with a sliding window in one of its layers: its keys and values grow with a bend."""
    folder = write_tiny_model(tmp_path_factory.mktemp("windowed"))
    engine, checkpoint = resolve_settings(engine_config({"model": folder, "device": "cpu"}))
    first, *others = checkpoint.spec.layers
    first = msgspec.structs.replace(first, attention=msgspec.structs.replace(first.attention, window=64))
    spec = msgspec.structs.replace(checkpoint.spec, layers=(first, *others))
    return engine, msgspec.structs.replace(checkpoint, spec=spec)


@given(size=st.integers(1, 1 << 19))
def test_the_longest_context_is_the_longest_that_fits(windowed: tuple[EngineConfig, Checkpoint], size: int) -> None:
    engine, checkpoint = windowed
    cache = msgspec.structs.replace(engine.cache, kv_cache_memory_bytes=size)
    needs = needs_of_model(msgspec.structs.replace(engine, cache=cache), checkpoint, [GIB])
    longest, block = needs.longest_context, engine.cache.block_size
    assert kv_bytes(engine, checkpoint, longest) <= size
    assert longest == needs.context or kv_bytes(engine, checkpoint, longest + block) > size
    assert longest <= needs.context
