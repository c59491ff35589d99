"""A model that transformers computes, through real processes."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pyllm import LLM, SamplingParams
from tests import in_process
from tests.e2e.server import Server
from tests.e2e.titles import WORKER, find
from tests.tiers import full
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.torch
PROMPTS = [
    [(17 * place * (seed + 1)) % 250 + 3 for place in range(length)] for seed, length in enumerate((70, 5, 33, 70))
]
PROMPTS.append([*PROMPTS[0][:64], 9])  # with a prefix of the first
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_num_batched_tokens": 32,
    "block_size": 8,
    "max_model_len": 128,
}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), heads=4, kv_heads=2)


def answers(model: str, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Of prompts that share a prefix, in chunks, with a cache that is too small for all of them."""
    with LLM(model, **OPTIONS, **options) as llm:
        return in_process.tokens(llm.generate(PROMPTS, GREEDY)), llm.stats()


@pytest.fixture(scope="module")
def native(tiny: str) -> list[list[int]]:
    with in_process.engine(tiny, **OPTIONS) as engine:
        return in_process.tokens(in_process.generate(engine, PROMPTS, GREEDY))


@pytest.mark.parametrize(
    "options",
    [{"tensor_parallel_size": 2}, full({"distributed_executor_backend": "uni"})],
)
def test_tokens_are_those_of_the_family(tiny: str, native: list[list[int]], options: dict[str, Any]) -> None:
    tokens, stats = answers(tiny, model_impl="transformers", **options)
    assert tokens == native
    assert stats["num_drafts"] == 0


@pytest.mark.parametrize(
    ("family", "ranks", "options"),
    [
        full("gemma3", 1, {"kv_offloading_size": "8MiB"}),
        full("gpt-oss", 1, {}),
        pytest.param("granite", 2, {}, marks=pytest.mark.oracle),
        pytest.param("qwen3-moe", 1, {}, marks=pytest.mark.oracle),
        pytest.param("cohere2", 1, {"kv_offloading_size": "8MiB"}, marks=pytest.mark.oracle),
    ],
)
def test_families_in_chunks_cached_and_preempted(
    tmp_path: Path, family: str, ranks: int, options: dict[str, Any]
) -> None:
    from tests.families.test_engine import check
    from tests.families.tiny_families import write_tiny_family

    check(write_tiny_family(tmp_path, family), family, ranks, model_impl="transformers", **options)


def test_a_server_says_who_computes_and_goes_on_without_a_worker(tiny: str) -> None:
    with Server("--model", tiny, "--model-impl", "transformers", "--dtype", "float32") as server:
        (card,) = get(f"{server.address}/v1/models")["data"]
        assert (card["model_impl"], card["batch_invariant"]) == ("transformers", False)
        body = {"prompt": PROMPTS[1], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        before = get(f"{server.address}/v1/completions", body)
        (worker,) = find(server.process.pid, WORKER)
        worker.kill()
        after = get(f"{server.address}/v1/completions", body)
        assert before["choices"][0]["text"] == after["choices"][0]["text"]
    assert "computes this model: eagerly and without drafts" in server.log


def test_a_model_with_states_ends_the_start(tmp_path: Path, tiny: str) -> None:
    folder = tmp_path / "recurrent"
    folder.mkdir()
    for file in Path(tiny).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma"}
    (folder / "config.json").write_text(json.dumps(config))
    server = Server("--model", str(folder))
    assert server.wait() != 0
    assert "RecurrentGemmaForCausalLM has layers of the kind linear_attention, recurrent, which keep" in server.log


def get(address: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as response:
        return json.load(response)
