"""Adapters, end to end: in one batch, beside merged models, over HTTP, from Python, and after a core's death."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllm import LLM, LoRARequest, RequestOutput, SamplingParams
from pyllm.checkpoint.adapters.peft_folder import WEIGHTS
from pyllm.errors import RequestError
from tests import in_process
from tests.checkpoint.adapters.lora_folder import PEFT, write_lora
from tests.e2e.server import Server, until
from tests.e2e.titles import WORKER, find_one
from tests.in_process import KV_CACHE
from tests.safetensors_arrays import load_file, save_file
from tests.tiers import full
from tests.tiny_model import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPT = "The capital of France is"
# Of each layer of the embedded model, [out_features, in_features].
SHAPES = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.down_proj": (576, 1536),
}
MODULES = {f"model.layers.{layer}.{name}": shape for layer in range(0, 30, 3) for name, shape in SHAPES.items()}
ENGINE = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "4", "--distributed-executor-backend", "uni")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the adapters `one`, `two` and `three`, and one that is damaged."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two", "three", "damaged")):
        write_lora(folder / name, MODULES, seed=seed, scale=0.3)
    (folder / "damaged" / WEIGHTS).write_bytes((folder / "damaged" / WEIGHTS).read_bytes()[:-100])
    return folder


@pytest.fixture(scope="module")
def server(adapters: Path) -> Iterator[Server]:
    with Server(*ENGINE, "--lora-modules", f"one={adapters / 'one'}", "--lora-folder", str(adapters)) as started:
        yield started


def text(server: Server, model: str) -> str:
    answer = server.complete(PROMPT, model=model, max_tokens=6, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


def test_each_row_of_a_batch_has_its_own_adapter(adapters: Path) -> None:
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
    with in_process.engine(**options) as engine:
        one, two, third = (
            LoRARequest(name, number, str(adapters / name)) for number, name in enumerate(("one", "two", "three"), 1)
        )
        requests = [None, one, two]

        def run(*chosen: LoRARequest | None) -> list[list[int]]:
            for number, request in enumerate(chosen):
                engine.add_request(str(number), PROMPT, GREEDY, lora_request=request)
            finished = {}
            while engine.has_unfinished_requests():
                finished |= {output.request_id: output for output in engine.step() if output.finished}
            return in_process.tokens([finished[str(number)] for number in range(len(chosen))])

        together = run(*requests)
        assert len(set(map(tuple, together))) == 3
        assert together[0] == in_process.tokens(in_process.generate(engine, [PROMPT], GREEDY))[0]
        assert [run(request)[0] for request in requests] == together
        # A third takes turns with the two that fit.
        assert run(third, *requests)[1:] == together
        assert engine.list_loras() == {1, 2, 3}
        assert engine.remove_lora(3)
        assert engine.list_loras() == {1, 2}
        with pytest.raises(RequestError, match="damaged"):
            engine.add_lora(LoRARequest("damaged", 4, str(adapters / "damaged")))


def test_a_program_chooses_an_adapter_for_each_prompt(adapters: Path) -> None:
    one = LoRARequest("one", 1, str(adapters / "one"))
    options: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 4, "kv_cache_memory_bytes": KV_CACHE}
    with closing(LLM(distributed_executor_backend="uni", **options)) as llm:
        mixed = llm.generate([PROMPT, PROMPT], GREEDY, lora_request=[None, one], use_tqdm=False)
        plain, changed = in_process.tokens(mixed)
        assert plain != changed
        both = llm.generate([PROMPT, PROMPT], GREEDY, lora_request=one, use_tqdm=False)
        assert in_process.tokens(both) == [changed, changed]
        assert llm.list_loras() == {1}
        with pytest.raises(RequestError, match="lora_request has 1 for 2 prompts"):
            llm.generate([PROMPT, PROMPT], GREEDY, lora_request=[one], use_tqdm=False)
        (metric,) = [each for each in llm.get_metrics() if each.name == "vllm:lora_requests_info"]
        assert metric.labels["max_lora"] == "4"


def test_a_server_lists_loads_and_unloads_adapters(server: Server, adapters: Path) -> None:
    base = server.model()
    with server.http() as http:
        cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
        assert cards["one"]["parent"] == base
        assert cards["one"]["root"] == str(adapters / "one")
        loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "named", "lora_path": str(adapters / "two")})
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'named' added successfully.")
        assert len({text(server, name) for name in (base, "one", "named")}) == 3
        damaged = http.post("/v1/load_lora_adapter", json={"lora_name": "bad", "lora_path": str(adapters / "damaged")})
        assert damaged.status_code == 400
        assert "damaged" in damaged.json()["error"]["message"]
        removed = http.post("/v1/unload_lora_adapter", json={"lora_name": "named"})
        assert removed.status_code == 200
        assert http.get("/v1/models/named").status_code == 404


def test_an_unknown_name_is_found_in_the_folder(server: Server) -> None:
    assert text(server, "three") not in {text(server, server.model()), text(server, "one")}
    for name in ("damaged", "absent"):
        answer = server.complete(PROMPT, model=name)
        assert answer.status_code == 404
        assert f"The model '{name}' does not exist" in answer.json()["error"]["message"]


def test_adapters_outlive_a_core(server: Server) -> None:
    before = text(server, "one"), text(server, "three")
    core = server.titled("pyllm::core-0")
    core.send_signal(signal.SIGKILL)
    core.wait(60)
    assert (text(server, "one"), text(server, "three")) == before
    until(lambda: server.titled("pyllm::core-0").pid != core.pid, "the next core")


def merged(folder: Path, model: Path, adapter: Path) -> str:
    """A copy of the model with the adapter's products in its weights."""
    shutil.copytree(model, folder)
    weights, pairs = load_file(folder / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name, down in pairs.items():
        if ".lora_A." in name:
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            weights[target] = (
                weights[target] + PEFT["lora_alpha"] / len(down) * pairs[name.replace("_A.", "_B.")] @ down
            )
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def scored(output: RequestOutput) -> tuple[list[int], list[float]]:
    """The tokens, and the log-probability of each."""
    (sample,) = output.outputs
    assert sample.logprobs is not None
    tokens = list(sample.token_ids)
    return tokens, [place[token].logprob for token, place in zip(tokens, sample.logprobs, strict=True)]


@pytest.mark.parametrize("ranks", [1, full(2)])
def test_adapters_in_one_batch_equal_merged_models_and_outlive_a_worker(tmp_path: Path, ranks: int) -> None:
    model = Path(write_tiny_model(tmp_path / "model", heads=4, kv_heads=2))
    shapes = {name: weight.shape for name, weight in load_file(model / "model.safetensors").items() if "_proj" in name}
    modules = {name.removesuffix(".weight"): (shape[0], shape[1]) for name, shape in shapes.items()}
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompt, adapters, expected = {"prompt_token_ids": list(range(40))}, [None], []
    for number in range(4):
        folder = str(model)
        if number:
            adapter = write_lora(tmp_path / f"adapter-{number}", modules, rank=1 + number, seed=number, scale=0.2)
            adapters.append(LoRARequest(f"adapter-{number}", number, str(adapter)))
            folder = merged(tmp_path / f"merged-{number}", model, adapter)
        with in_process.engine(folder, dtype="float32") as alone:
            expected.append(scored(in_process.generate(alone, [prompt], params)[0]))
    assert len({tuple(tokens) for tokens, _ in expected}) == 4

    options: dict[str, Any] = {"tensor_parallel_size": ranks, "num_threads": 1, "dtype": "float32"}
    options |= {"enable_lora": True, "max_loras": 3, "kv_cache_memory_bytes": "16MiB", "warm_spares": False}
    with closing(LLM(str(model), **options)) as llm:
        for _ in range(2):
            outputs = llm.generate([prompt] * len(adapters), params, lora_request=adapters, use_tqdm=False)
            for output, (tokens, logprobs) in zip(outputs, expected, strict=True):
                found = scored(output)
                assert found[0] == tokens
                np.testing.assert_allclose(found[1], logprobs, rtol=0, atol=1e-4)
            find_one(llm._engine._processes.pids(), WORKER).send_signal(signal.SIGKILL)
