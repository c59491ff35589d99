"""Whether a model fits, by the memory that a machine says it has."""

import logging
import math
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import Checkpoint
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.config.process_config import WorkerConfig
from pyllm.errors import ConfigError
from pyllm.families.config import Config
from pyllm.families.registry import find_family
from pyllm.families.tensors import FileTensor
from pyllm.launch.memory_check import (
    check_memory,
    default_kv_cache_bytes,
    kv_bytes,
    kv_bytes_per_token,
    memory_needed,
    table_bytes_per_token,
    weights_bytes,
)
from pyllm.launch.resolve import resolve_config
from pyllm.machine.memory import Memory
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.kv.kv_cache import KVCache, KVCacheShape
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_runner import ModelRunner
from tests.families.record_gguf import FOLDER as GGUF_FIXTURES
from tests.families.tiny_families import write_tiny_family
from tests.tiny_gguf import write_gpt_oss_gguf
from tests.tiny_model import write_tiny_model
from tests.tiny_mxfp4 import write_mxfp4
from tests.tiny_quantised import SIZES, VARIANTS, write_quantised

MEGABYTE = 1 << 20
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102_400,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "max_position_embeddings": 163_840,
    "q_lora_rank": None,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}


def resolved(**options: object) -> tuple[EngineConfig, Checkpoint]:
    return resolve_config(engine_config({"device": "cpu"} | options))


def machine(available: int) -> list[Memory]:
    return [Memory(available, 64 << 30, "the host")]


def test_weights_are_counted_in_their_precision() -> None:
    engine, checkpoint = resolved(dtype="float32")
    assert weights_bytes(engine, checkpoint) == 4 * 134_515_008
    engine, _ = resolved(dtype="bfloat16")
    assert weights_bytes(engine, checkpoint) == 2 * 134_515_008
    engine, _ = resolved(quantization="gguf", dtype="auto")
    assert weights_bytes(engine, checkpoint) == sum(entry.source.num_bytes for entry in checkpoint.tensors)
    assert kv_bytes_per_token(engine, checkpoint) == 2 * 30 * 192 * 2


def test_latents_take_one_vector_of_a_token_on_every_rank() -> None:
    """DeepSeek-V2-Lite's layers have 576 numbers of a token, and no heads."""
    spec = find_family("DeepseekV2ForCausalLM").read(Config(DEEPSEEK_V2_LITE))
    engine, checkpoint = resolved(dtype="bfloat16")
    checkpoint = msgspec.structs.replace(checkpoint, spec=spec)
    context = 32_000
    expected = context * 27 * 576 * 2
    assert kv_bytes(engine, checkpoint, context) == expected
    two_ranks = msgspec.structs.replace(engine.parallel, tensor_parallel_size=2)
    assert kv_bytes(msgspec.structs.replace(engine, parallel=two_ranks), checkpoint, context) == 2 * expected
    shape = KVCacheShape.of(spec, 16, 1, "bfloat16")
    cache = KVCache(shape, context // 16, HostDevice())
    assert cache.memory.nbytes == shape.block_bytes * cache.num_blocks == expected
    assert np.shares_memory(cache.layers[26].keys, cache.layers[26].values)


def test_a_tied_embedding_is_on_both_ends_of_a_pipeline() -> None:
    engine, checkpoint = resolved(dtype="float32", pipeline_parallel_size=2)
    assert weights_bytes(engine, checkpoint) == 4 * (134_515_008 + 49_152 * 576)
    assert kv_bytes_per_token(engine, checkpoint) == 2 * 30 * 192 * 4  # 15 layers each
    alone, _ = resolved(dtype="float32")
    processes = [memory_needed(one, checkpoint) - weights_bytes(one, checkpoint) for one in (engine, alone)]
    assert processes[0] - processes[1] == 256 * MEGABYTE


def on_gpu(engine: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(engine, device=msgspec.structs.replace(engine.device, device="cuda"))


@pytest.mark.parametrize(
    ("kind", "device", "bits"),
    [
        *(("Q4_K", "cpu", 4.625), ("Q2_K", "cpu", 5.125), ("Q3_K", "cpu", 4.5625), ("IQ2_XS", "cpu", 2.4375)),
        *(
            ("IQ1_S", "cpu", 1.6875),
            ("TQ2_0", "cpu", 4.5),
            ("NVFP4", "cpu", 8.5),
            ("F16", "cpu", 16),
            ("F32", "cpu", 16),
        ),
        *(
            ("Q4_K", "cuda", 16),
            ("IQ2_XS", "cuda", 8.5),
            ("Q4_1", "cuda", 5),
            ("TQ2_0", "cuda", 5),
            ("F32", "cuda", 16),
        ),
    ],
)
def test_matrices_of_a_file_are_counted_as_they_are_kept(kind: str, device: str, bits: float) -> None:
    engine, checkpoint = resolved(quantization="gguf", dtype="auto")
    engine = engine if device == "cpu" else on_gpu(engine)
    shape = (1024, 2048)
    source = FileTensor("m", kind, shape, 0, 0, math.prod(shape) * 9 // 16)  # as Q4_K has it
    entry = msgspec.structs.replace(checkpoint.tensors[0], source=source)
    assert weights_bytes(engine, msgspec.structs.replace(checkpoint, tensors=(entry,))) == math.prod(shape) * bits / 8


def test_the_cache_takes_half_of_what_is_left_but_no_more_than_it_can_use() -> None:
    engine, checkpoint = resolved(dtype="float32")
    beside = memory_needed(engine, checkpoint) + 8192 * table_bytes_per_token(engine, checkpoint)

    def size(left: int, engine: EngineConfig = engine) -> int:
        return default_kv_cache_bytes(engine, checkpoint, beside + left)

    assert size(8 << 30) == 4 << 30
    assert [size(left) for left in (-1, 1 << 30, 600 * MEGABYTE)] == [512 * MEGABYTE] * 3
    assert size(1 << 40) == 128 * 8192 * 2 * 30 * 192 * 4  # 128 sequences of the whole context
    cores = msgspec.structs.replace(engine.parallel, data_parallel_size=2)
    assert size(beside + (8 << 30), msgspec.structs.replace(engine, parallel=cores)) == 2 << 30


def test_resolving_sets_the_size_of_the_cache_unless_one_is_given() -> None:
    engine, _ = resolved(dtype="float32")
    assert (engine.cache.kv_cache_memory_bytes or 0) >= 512 * MEGABYTE
    assert resolved(dtype="float32", kv_cache_memory_bytes="3MiB")[0].cache.kv_cache_memory_bytes == 3 * MEGABYTE


def test_weights_that_do_not_fit_are_refused_with_the_numbers() -> None:
    engine, checkpoint = resolved(dtype="float32")
    with pytest.raises(ConfigError, match=r"needs 0\.54 GB for weights .*, and the host has 0\.52 GB available: free"):
        check_memory(engine, checkpoint, lambda: machine(500 * MEGABYTE))


def test_weights_that_are_mapped_from_disk_need_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    engine, checkpoint = resolved(quantization="gguf", dtype="auto", kv_cache_memory_bytes="8MiB")
    beside = memory_needed(engine, checkpoint) - weights_bytes(engine, checkpoint)
    with caplog.at_level(logging.WARNING):
        check_memory(engine, checkpoint, lambda: machine(beside + 20 * MEGABYTE))
    assert "the model takes 0.10 GB for weights and about 0.54 GB for processes: its weights are read" in caplog.text
    with pytest.raises(ConfigError, match="the model needs"):
        check_memory(engine, checkpoint, lambda: machine(beside - MEGABYTE))
    engine, _ = resolved(quantization="gguf", dtype="auto", packed_cache_size=0)
    with pytest.raises(ConfigError, match="the model needs"):
        check_memory(engine, checkpoint, lambda: machine(beside + 20 * MEGABYTE))


def test_a_context_whose_tables_do_not_fit_is_refused_with_one_that_does() -> None:
    engine, checkpoint = resolved(dtype="float32")
    spec = msgspec.structs.replace(checkpoint.spec, max_position_embeddings=2**31 - 1)
    engine = msgspec.structs.replace(engine, model=msgspec.structs.replace(engine.model, max_model_len=2**31 - 1))
    with pytest.raises(
        ConfigError, match=r"of 2147483647 tokens take 618\.48 GB beside .*set --max-model-len (\d+) or"
    ) as told:
        check_memory(engine, msgspec.structs.replace(checkpoint, spec=spec), lambda: machine(4000 * MEGABYTE))
    fits = int(str(told.value).split()[-3])
    fitting = msgspec.structs.replace(engine, model=msgspec.structs.replace(engine.model, max_model_len=fits))
    check_memory(fitting, checkpoint, lambda: machine(4000 * MEGABYTE))


def test_a_cache_that_could_not_be_filled_is_told(caplog: pytest.LogCaptureFixture) -> None:
    engine, checkpoint = resolved(dtype="float32", kv_cache_memory_bytes="1GiB")
    with caplog.at_level(logging.WARNING):
        check_memory(engine, checkpoint, lambda: machine(1500 * MEGABYTE))
    assert "set --kv-cache-memory-bytes" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_memory(engine, checkpoint, lambda: machine(4000 * MEGABYTE))
    assert not caplog.text


def test_a_cache_beyond_all_of_the_memory_is_refused_with_one_that_fits() -> None:
    engine, checkpoint = resolved(dtype="float32")

    def asking(size: int) -> EngineConfig:
        return msgspec.structs.replace(engine, cache=msgspec.structs.replace(engine.cache, kv_cache_memory_bytes=size))

    with pytest.raises(ConfigError, match=r"a KV cache of 1099\.51 GB .*68\.72 GB of memory that the host has") as told:
        check_memory(asking(1 << 40), checkpoint, lambda: machine(4000 * MEGABYTE))
    fits = int(str(told.value).split()[-3])
    assert 0 < fits < 4000 * MEGABYTE
    check_memory(asking(fits), checkpoint, lambda: machine(4000 * MEGABYTE))


def test_each_core_needs_memory_of_its_own_but_for_weights_that_all_map() -> None:
    cores = 3
    for options, shared in (({"dtype": "float32"}, 0), ({"quantization": "gguf", "dtype": "auto"}, 1)):
        engine, checkpoint = resolved(kv_cache_memory_bytes="1MiB", **options)
        several, _ = resolved(kv_cache_memory_bytes="1MiB", data_parallel_size=cores, **options)
        weights = weights_bytes(engine, checkpoint)
        tables = checkpoint.spec.max_position_embeddings * table_bytes_per_token(engine, checkpoint)
        needed = cores * (memory_needed(engine, checkpoint) + tables) - shared * (cores - 1) * weights
        least = needed - shared * weights  # Weights that are mapped need not fit.
        check_memory(several, checkpoint, lambda least=least: machine(least + 1))
        with pytest.raises(ConfigError, match=r"of 3 cores.* available: (set --max-model-len|.*lower --data-parallel)"):
            check_memory(several, checkpoint, lambda least=least: machine(least - MEGABYTE))


def test_gpus_are_asked_by_their_workers() -> None:
    engine, checkpoint = resolved()
    on_gpu = msgspec.structs.replace(engine, device=msgspec.structs.replace(engine.device, device="cuda"))
    check_memory(on_gpu, checkpoint, lambda: machine(0))


@pytest.mark.parametrize("name", VARIANTS)
def test_quantised_folders_are_counted_as_they_are_kept(tmp_path: Path, name: str) -> None:
    variant, _ = VARIANTS[name]
    folder = write_quantised(write_tiny_model(tmp_path / "tiny", **SIZES), tmp_path / "quantised", variant)
    engine, checkpoint = resolved(model=folder, dtype="auto", max_model_len=64)
    runner = ModelRunner(
        WorkerConfig(engine=engine, checkpoint=checkpoint, rank=0, address="", rendezvous=""), RankGroup()
    )
    runner.load()
    held = runner.statistics()
    # The kernels' 32 outputs side by side and int8's scales are not counted, and norms are not held there.
    counted = weights_bytes(engine, checkpoint)
    assert counted == pytest.approx(held["linear_bytes"] + held["embedding_bytes"], rel=0.08)


@pytest.mark.parametrize(("name", "share"), [("fp8 of rows", 1 / 2), ("awq", 1), ("packed", 20 / 18), ("int8", 1)])
def test_a_gpu_keeps_other_formats(tmp_path: Path, name: str, share: float) -> None:
    source = write_tiny_model(tmp_path / "tiny", **SIZES)
    engine, checkpoint = resolved(
        model=write_quantised(source, tmp_path / "quantised", VARIANTS[name][0]), dtype="auto"
    )
    quantised = tuple(entry for entry in checkpoint.tensors if entry.quantised is not None)
    matrices = msgspec.structs.replace(checkpoint, tensors=quantised)
    assert weights_bytes(on_gpu(engine), matrices) == pytest.approx(share * weights_bytes(engine, matrices))


def test_experts_in_mxfp4_are_counted_in_4_bits_each(tmp_path: Path) -> None:
    source = write_tiny_family(tmp_path / "tiny", "gpt-oss")
    folder = write_mxfp4(source, tmp_path / "quantised", tmp_path / "floats")
    file = write_gpt_oss_gguf(source, tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.MXFP4)
    in_floats = weights_bytes(*resolved(model=source, dtype="bfloat16", quantization="none"))
    num_weights = 3 * 6 * 3 * 32 * 64  # layers, experts, matrices
    for model in (folder, file):
        counted = weights_bytes(*resolved(model=model, dtype="auto", max_model_len=64))
        of_vectors = sum(
            entry.source.num_bytes // 2 for entry in read_checkpoint(model).tensors if len(entry.shape) == 1
        )
        saved = num_weights * 2 - num_weights * 17 // 32
        # A GGUF's vectors are counted as they are in the file.
        assert counted == in_floats - saved + (of_vectors if model == file else 0)


def test_the_matrices_of_heads_are_counted_as_floats(tmp_path: Path) -> None:
    model = write_tiny_family(tmp_path, "youtu")
    num_floats = 2 * 4 * (12 + 32) * 32  # layers, heads, a key's and a value's numbers, the latent's
    floats = weights_bytes(*resolved(model=model, dtype="bfloat16", quantization="none"))
    assert weights_bytes(*resolved(model=model, dtype="bfloat16", quantization="int8")) == floats // 2 + num_floats
    file = str(GGUF_FIXTURES / "youtu.gguf")
    engine, checkpoint = resolved(model=file, dtype="bfloat16", quantization="gguf", max_model_len=64)
    of_vectors = sum(entry.source.num_bytes // 2 for entry in checkpoint.tensors if len(entry.shape) == 1)
    assert weights_bytes(engine, checkpoint) == floats + of_vectors
