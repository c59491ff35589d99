"""`/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from pathlib import Path

import msgspec

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.frontend.ollama.model_details import size_in_words
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.adapter_core import AdapterCore
from tests.client.fake_core import MODEL
from tests.frontend.anthropic.serving import THINKING
from tests.frontend.serving import answering, in_process
from tests.frontend.text import tiny_tokenizers
from tests.frontend.tiny_checkpoint import tiny_checkpoint

DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "5.27K",
    "quantization_level": "Q4_K_M",
}


async def test_models_and_adapters_are_listed_with_a_tag(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "tiny-Q4_K_M.gguf"
    file.write_bytes(b"12345")
    checkpoint = msgspec.structs.replace(tiny_checkpoint(), files=(str(file),))
    core = AdapterCore()
    core.files["/a"] = "d1"
    options = {"checkpoint": checkpoint, "model_aliases": ("qwen3:4b",)}
    async with in_process(core, tokenizer, **options) as frontend:
        await frontend.http.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": "/a"})
        tags = (await frontend.http.get("/api/tags")).json()["models"]
        loaded = (await frontend.http.get("/api/ps")).json()["models"]
        frontend.state.is_on_gpu = True
        (on_gpu, *_) = (await frontend.http.get("/api/ps")).json()["models"]
    assert [model["name"] for model in tags] == ["tiny:latest", "qwen3:4b", "mine:latest"]
    assert all(model["model"] == model["name"] for model in [*tags, *loaded])
    assert (tags[0]["size"], tags[0]["details"], len({model["digest"] for model in tags})) == (5, DETAILS, 1)
    assert tags[0]["modified_at"][:2] == "20"
    assert [model["name"] for model in loaded] == [model["name"] for model in tags]
    assert (loaded[0]["size"], loaded[0]["size_vram"], on_gpu["size_vram"]) == (5, 0, 5)
    assert (loaded[0]["context_length"], loaded[0]["expires_at"][:4]) == (MODEL.max_model_len, "9999")


async def test_a_model_is_shown_with_its_abilities(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    coder = tiny_tokenizers.load(made, tmp_path)
    sampling = SamplingDefaults(temperature=0.5, repetition_penalty=1.1, max_tokens=9)
    async with in_process(answering(coder, "x"), coder, THINKING, sampling=sampling) as frontend:
        by_name = [(await frontend.http.post("/api/show", json=body)).json() for body in ({"name": "tiny"},)]
        shown = (await frontend.http.post("/api/show", json={"model": "tiny:latest", "verbose": True})).json()
        missing = await frontend.http.post("/api/show", json={"model": "other"})
        nameless = await frontend.http.post("/api/show", json={})
    assert by_name == [shown]
    assert shown["capabilities"] == ["completion", "tools", "thinking", "insert", "embedding"]
    assert shown["template"].startswith(THINKING)
    assert ".Suffix" in shown["template"]
    lines = [line.split() for line in shown["parameters"].splitlines()]
    assert lines == [["temperature", "0.5"], ["repeat_penalty", "1.1"], ["num_predict", "9"], ["num_ctx", "256"]]
    info = shown["model_info"]
    assert (info["general.architecture"], info["llama.context_length"]) == ("llama", MODEL.max_model_len)
    assert (info["llama.embedding_length"], info["general.parameter_count"]) == (8, 5272)
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'other' not found"})
    assert (nameless.status_code, nameless.json()) == (400, {"error": "model is required"})
    async with in_process(answering(tokenizer, "x"), tokenizer, None) as frontend:
        plain = (await frontend.http.post("/api/show", json={"model": "tiny"})).json()
    assert (plain["capabilities"], plain["template"]) == (["completion", "embedding"], "")


async def test_the_version_has_three_numbers_that_programs_compare(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "x"), tokenizer) as frontend:
        version = (await frontend.http.get("/api/version")).json()["version"]
        alive = await frontend.http.head("/")
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    assert alive.status_code == 200


def test_sizes_have_three_digits() -> None:
    sizes = {134_515_008: "135M", 7_615_616_512: "7.62B", 999: "999", 1_000_000_000_000: "1T", 12_345: "12.3K"}
    assert {number: size_in_words(number) for number in sizes} == sizes
