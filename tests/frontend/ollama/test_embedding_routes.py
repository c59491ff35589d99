"""`/api/embed` and `/api/embeddings` over a scripted core."""

from array import array
from typing import Any

import msgspec
import pytest

from pyllm.frontend.openai.embedding_protocol import MAX_INPUTS
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL, ScriptedCore, embedded
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import in_process


def core(**model: Any) -> ScriptedCore:
    return ScriptedCore(lambda prompt, sample: [7], msgspec.structs.replace(MODEL, **model))


def floats(prompt: list[int]) -> list[float]:
    return array("f", embedded(prompt)).tolist()


async def test_texts_are_embedded_in_their_order(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        body = {"model": "tiny:latest", "input": ["Hello", "you"], "options": {"num_ctx": 5}, "keep_alive": 5}
        response = await frontend.http.post("/api/embed", json=body)
        single = (await frontend.http.post("/api/embed", json={"model": "tiny", "input": "Hello"})).json()
        older = (await frontend.http.post("/api/embeddings", json={"model": "tiny", "prompt": "Hello"})).json()
    answer = response.json()
    assert set(response.headers[HEADER].split(", ")) == {"options", "keep_alive"}
    num_tokens = sum(len(tokenizer.encode(text)) for text in ("Hello", "you"))
    assert (answer["model"], answer["prompt_eval_count"]) == ("tiny:latest", num_tokens)
    assert answer["total_duration"] > 0 <= answer["load_duration"]
    assert answer["embeddings"] == [floats(tokenizer.encode("Hello")), floats(tokenizer.encode("you"))]
    assert single["embeddings"] == [older["embedding"]] == answer["embeddings"][:1]
    assert older.keys() == {"embedding"}


async def test_nothing_to_embed_loads_the_model(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        for body in ({}, {"input": ""}, {"input": []}):
            answer = await frontend.http.post("/api/embed", json={"model": "tiny", **body})
            assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
        assert (await frontend.http.post("/api/embeddings", json={"model": "tiny"})).json() == {"embedding": []}
        assert frontend.core.sent(Submit) == []


async def test_a_long_text_loses_its_end_unless_it_must_not(tokenizer: Tokenizer) -> None:
    text = "Hello " * 500
    async with in_process(core(), tokenizer) as frontend:
        cut = await frontend.http.post("/api/embed", json={"model": "tiny", "input": text})
        refused = await frontend.http.post("/api/embed", json={"model": "tiny", "input": text, "truncate": False})
    kept = tokenizer.encode(text)[: MODEL.max_model_len]
    assert cut.json()["embeddings"] == [floats(kept)]
    assert refused.status_code == 400
    assert "tokens" in refused.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "other", "input": "a"}, 404, "model 'other' not found"),
        ({"input": "a"}, 400, "model"),
        ({"model": "tiny", "input": [1, 2]}, 400, "input"),
        ({"model": "tiny", "input": ["a"] * (MAX_INPUTS + 1)}, 400, f"at most {MAX_INPUTS}"),
        ({"model": "tiny", "input": "a", "dimensions": 2}, 400, "dimensions"),
    ],
)
async def test_what_cannot_be_says_why(body: dict[str, Any], status: int, said: str, tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        answer = await frontend.http.post("/api/embed", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]


async def test_dimensions_cut_where_the_model_can(tokenizer: Tokenizer) -> None:
    async with in_process(core(is_matryoshka=True), tokenizer) as frontend:
        answer = await frontend.http.post("/api/embed", json={"model": "tiny", "input": "a", "dimensions": 2})
    (vector,) = answer.json()["embeddings"]
    assert len(vector) == 2
