"""KV blocks that outlive the engine: processes and ranks that save and load them, and answers that stay the same."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from safetensors.numpy import load_file, save_file

from pyllm import LLM, EngineClient, LLMEngine, SamplingParams, SchedulingParams
from pyllm.client import RequestHasher
from pyllm.kv_transfer.stores.disk_store import DiskStore
from pyllm.kv_transfer.stores.store import Retention
from tests import in_process
from tests.e2e.server import Server, until
from tests.kv_transfer.dict_store import forget_all
from tests.tiny_model import write_tiny_model

PROMPT = list(range(1, 200))
GREEDY = SamplingParams(temperature=0, max_tokens=8)


FEW: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64}


def ask(model: str, prompt: list[int] = PROMPT, **options: Any) -> tuple[list[int], int]:
    """Tokens of the answer of an engine that is started anew, and how many of the prompt's were cached."""
    with in_process.engine(model, **FEW, **options) as engine:
        return answer(engine, prompt)


def answer(engine: LLMEngine, prompt: list[int], retention: Retention = "default") -> tuple[list[int], int]:
    place = SchedulingParams(kv_cache_retention=retention)
    (output,) = in_process.generate(engine, [prompt], GREEDY, [place])
    return list(output.outputs[0].token_ids), output.num_cached_tokens


def test_blocks_on_disk_serve_the_next_engine(tmp_path: Path) -> None:
    model, folder = write_tiny_model(tmp_path / "model"), str(tmp_path / "blocks")
    tokens, num_cached = ask(model, kv_cache_dir=folder)
    assert num_cached == 0
    assert ask(model, kv_cache_dir=folder) == (tokens, 192)
    other = write_tiny_model(tmp_path / "other", seed=1)
    assert ask(other, kv_cache_dir=folder)[1] == 0, "another model's blocks are in another namespace"


def test_every_rank_saves_its_blocks_and_loads_them_in_the_next_engine(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", heads=4, kv_heads=2)
    options: dict[str, Any] = {**FEW, "tensor_parallel_size": 2, "kv_cache_dir": str(tmp_path / "blocks")}
    with LLM(model, **options) as llm:
        (first,) = llm.generate([PROMPT], GREEDY)
        names = ("kv_store_disk_num_saved", "kv_store_disk_num_blocks", "kv_store_disk_num_queries")
        until(lambda: [llm.stats().get(name) for name in names] == [24] * 3, "12 blocks of each rank")
        stats = llm.stats()
    assert stats["kv_store_disk_num_hits"] == 0
    assert stats["kv_store_disk_capacity_bytes"] == 16 << 30
    assert stats["kv_store_disk_saved_bytes"] <= stats["kv_store_disk_used_bytes"] == stats["kv_store_disk_live_bytes"]
    with LLM(model, **options) as llm:
        (second,) = llm.generate([PROMPT], GREEDY)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 192)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


async def test_a_program_beside_the_engine_finds_a_prompts_blocks_in_the_folder(tmp_path: Path) -> None:
    address, folder = f"ipc://{tmp_path}/core", tmp_path / "blocks"
    model = write_tiny_model(tmp_path / "model", heads=4, kv_heads=2)
    flags = ["--bind", address, "--tensor-parallel-size", "2", "--kv-cache-dir", str(folder)]
    core = subprocess.Popen([sys.executable, "-m", "pyllm", "core", model, *flags], stdout=subprocess.PIPE)
    client = await EngineClient.connect(address, timeout=90)
    async for _ in client.generate(PROMPT, GREEDY):
        pass
    hasher = RequestHasher(client.model)
    client.close()
    core.terminate()
    core.communicate(timeout=60)
    store = DiskStore(folder, 1 << 30)
    hashes = hasher.hashes(PROMPT)
    assert len(hashes) == 12
    assert all(all(store.lookup(hasher.keys(name))) for name in hashes)
    (other,) = hasher.hashes(PROMPT[1:17])
    assert not any(store.lookup(hasher.keys(other)))
    store.close()


def test_a_store_whose_figures_never_come_holds_up_nothing_not_even_the_end() -> None:
    extra = {"store": "tests.kv_transfer.hanging_store:HangingStore", "store_options": {"name": "hanging"}}
    connector = {"kv_connector": "StoreConnector", "kv_connector_extra_config": extra}
    with Server("--kv-transfer-config", json.dumps(connector)) as server:
        for _ in range(2):  # The first has the figures asked for.
            assert httpx.get(f"{server.address}/metrics").status_code == 200
            assert server.complete("The capital of France is", max_tokens=4).status_code == 200
    assert server.process.returncode == 0
    assert "did not shut down cleanly" not in server.log


def test_a_model_that_differs_only_deep_within_its_tensors_is_another_one(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    other = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    for name in ("k_proj", "v_proj"):
        changed = tensors[f"model.layers.0.self_attn.{name}.weight"]
        assert changed.nbytes > 8192
        changed[len(changed) // 2 :] *= -1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    expected, _ = ask(str(other))
    folder = str(tmp_path / "blocks")
    tokens, _ = ask(model, kv_cache_dir=folder)
    assert tokens != expected
    assert ask(str(other), kv_cache_dir=folder) == (expected, 0)


def test_a_store_in_process_is_filled_and_read(tmp_path: Path) -> None:
    forget_all()
    model = write_tiny_model(tmp_path / "model")
    connector = {
        "kv_connector": "StoreConnector",
        "kv_connector_extra_config": {
            "store": "tests.kv_transfer.dict_store:open_dict",
            "store_options": {"name": "in process"},
        },
    }
    tokens, num_cached = ask(model, kv_transfer_config=connector)
    assert num_cached == 0
    assert ask(model, kv_transfer_config=connector) == (tokens, 192)


def test_each_request_says_how_long_the_disk_keeps_it(tmp_path: Path) -> None:
    model, folder = write_tiny_model(tmp_path / "model", heads=4, kv_heads=2), tmp_path / "blocks"
    options: dict[str, Any] = {**FEW, "kv_cache_dir": str(folder), "kv_cache_disk_size": 1 << 20}
    with in_process.engine(model, **options) as engine:
        answer(engine, PROMPT, "none")
    assert list(folder.glob("*.segment")) == [], "nothing of it is written"

    kept, num_bytes = [7] * 49, 0
    with in_process.engine(model, **options) as engine:
        assert answer(engine, PROMPT)[1] == 0
        assert answer(engine, kept, "long")[1] == 0
        for text in range(20, 120):
            answer(engine, [text] * 200)
            num_bytes = engine.stats()["kv_saved_bytes"]
            if num_bytes > 2 << 20:
                break
    assert num_bytes > 2 << 20

    with in_process.engine(model, **options) as engine:
        assert (answer(engine, PROMPT)[1], answer(engine, kept)[1]) == (0, 48)
