"""`/v1/embeddings` over a scripted core."""

import asyncio
import base64
from array import array
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.openai.embedding_protocol import MAX_INPUTS
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Abort, FinishCode, Submit
from tests.client.fake_core import MODEL, Row, ScriptedCore, embedded
from tests.frontend.ignoring import check_no_effect
from tests.frontend.serving import Frontend, behind_uvicorn, in_process
from tests.frontend.text import tiny_tokenizers
from tests.waiting import until


def core(**model: Any) -> ScriptedCore:
    return ScriptedCore(lambda prompt, sample: [7], msgspec.structs.replace(MODEL, **model))


async def embed(frontend: Frontend, **body: Any) -> dict[str, Any]:
    response = await frontend.http.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


def floats(*prompts: list[int]) -> list[list[float]]:
    """What the core embeds prompts as, in float32."""
    return [array("f", embedded(prompt)).tolist() for prompt in prompts]


async def test_an_answer_has_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        answer = await embed(frontend, model="tiny", input="Hello", user="someone")
        assert frontend.state.metrics.finished["stop"] == 1
        assert (frontend.state.metrics.prompt_tokens, frontend.state.metrics.cached_prompt_tokens) == (1, 2)
    assert answer.pop("id").startswith("embd-")
    assert isinstance(answer.pop("created"), int)
    (vector,) = floats(tokenizer.encode("Hello"))
    assert answer == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": vector}],
        "model": "tiny",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }


async def test_inputs_are_text_or_token_ids_one_or_many(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        hello, many = tokenizer.encode("Hello"), [[position % 600] for position in range(MAX_INPUTS)]
        for given, prompts in (
            ("Hello", [hello]),
            (["Hello", "x"], [hello, tokenizer.encode("x")]),
            ([5, 6], [[5, 6]]),
            ([[5, 6], [7]], [[5, 6], [7]]),
            ([[5], "Hello"], [[5], hello]),
            (many, many),
        ):
            answer = await embed(frontend, input=given)
            assert vectors(answer) == floats(*prompts)
            assert answer["usage"]["total_tokens"] == sum(map(len, prompts))


async def test_base64_is_little_endian_float32(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        answer = await embed(frontend, input=[[5, 6], [7]], encoding_format="base64", dimensions=MODEL.hidden_size)
    packed = [base64.b64decode(text) for text in vectors(answer)]
    assert [array("f", vector).tolist() for vector in packed] == floats([5, 6], [7])


async def test_dimensions_cut_the_vector_of_a_model_trained_for_it(tokenizer: Tokenizer) -> None:
    async with in_process(core(is_matryoshka=True), tokenizer) as frontend:
        (vector,) = vectors(await embed(frontend, input=[5, 6], dimensions=2))
    (whole,) = floats([5, 6])
    length = (whole[0] ** 2 + whole[1] ** 2) ** 0.5
    assert vector == pytest.approx([whole[0] / length, whole[1] / length])


async def test_the_last_tokens_are_kept_or_the_first(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        long = [position % 600 for position in range(1000)]
        for body, kept in (
            ({"truncate_prompt_tokens": 2}, [8, 9]),
            ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [8, 9]),
            ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [7, 8]),
            ({"truncate_prompt_tokens": 9}, [7, 8, 9]),
        ):
            assert vectors(await embed(frontend, input=[7, 8, 9], **body)) == floats(kept)
        cut = await embed(frontend, input=long, truncate_prompt_tokens=-1)
        assert vectors(cut) == floats(long[-MODEL.max_model_len :])
        text = await embed(frontend, input="Hello" * 100_000, truncate_prompt_tokens=3)
        assert text["usage"]["prompt_tokens"] == 3


async def test_special_tokens_are_the_callers_choice(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizers.load(tiny_tokenizers.with_bos(), tmp_path)
    async with in_process(core(), tokenizer) as frontend:
        for body, size in (({}, 2), ({"add_special_tokens": True}, 2), ({"add_special_tokens": False}, 1)):
            assert (await embed(frontend, input="Hello", **body))["usage"]["prompt_tokens"] == size


async def test_an_input_may_fill_the_context(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        whole = [5] * MODEL.max_model_len
        assert vectors(await embed(frontend, input=whole)) == floats(whole)
        response = await frontend.http.post("/v1/embeddings", json={"input": [*whole, 5]})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_its_place_among_others_goes_to_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        await embed(frontend, input="Hello", priority=4, timeout=9.0)
        (submit,) = frontend.core.sent(Submit)
    assert submit.priority == 4
    assert 0 < submit.timeout < 9.0  # Reading the request and its prompts has taken some of it.


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [600]}, "input"),
        ({"input": ["ok", [600]]}, "input"),
        ({"input": [5, "x"]}, "input"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"input": 5}, "input"),
        ({"input": "x", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "x", "dimensions": 2}, "dimensions"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "x", "padding": "max_length"}, "padding"),
        ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"input": "x", "endianness": "big"}, "endianness"),
        ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
        ({"input": "x", "truncation_side": "left"}, "truncation_side"),
        ({"input": "x", "normalize": False}, "normalize"),
        ({"input": "x", "timeout": 0}, "timeout"),
    ],
)
async def test_what_cannot_run_is_refused_by_name(tokenizer: Tokenizer, body: dict[str, Any], parameter: str) -> None:
    async with in_process(core(), tokenizer) as frontend:
        response = await frontend.http.post("/v1/embeddings", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, parameter)
        assert len((await embed(frontend, input="x"))["data"]) == 1
        assert frontend.core.running == {}


@pytest.mark.parametrize(("name", "value"), [("tenant", "acme"), ("request_id", "x"), ("input_type", "query")])
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, name: str, value: str
) -> None:
    def serve(server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
        return in_process(core(), tokenizer, server=server)

    body = {"input": ["Hello", "x"]}
    await check_no_effect(serve, "/v1/embeddings", {**body, name: value}, body, name)


async def test_where_one_fails_all_do_and_the_rest_is_aborted(tokenizer: Tokenizer) -> None:
    class Late(ScriptedCore):
        def _step(self) -> None:
            first, *others = self.sent(Submit)
            self.say_rows(Row(first.request, [], finish=FinishCode.DEADLINE))
            assert self.sent(Abort) == [Abort(submit.epoch, submit.request) for submit in others]

    async with in_process(Late(lambda prompt, sample: [7]), tokenizer) as frontend:
        response = await frontend.http.post("/v1/embeddings", json={"input": ["x", "y", "z"], "timeout": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
        assert frontend.state.metrics.finished["deadline"] == 3
        assert len(frontend.core.sent(Abort)) == 2


async def test_an_engine_that_fails_is_worth_another_try_later(tokenizer: Tokenizer) -> None:
    class Failing(ScriptedCore):
        def _step(self) -> None:
            (submit,) = self.sent(Submit)
            self.say_rows(Row(submit.request, [], finish=FinishCode.ERROR))

    async with in_process(Failing(lambda prompt, sample: [7]), tokenizer) as frontend:
        response = await frontend.http.post("/v1/embeddings", json={"input": "x"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


async def test_what_is_out_of_time_before_it_is_submitted_is_not(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        response = await frontend.http.post(
            "/v1/embeddings", json={"input": "x"}, headers={"x-request-timeout": "0.000000001"}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
        assert "before its first embedding" in response.json()["error"]["message"]
        assert frontend.core.sent(Submit) == []


async def test_a_disconnect_aborts_what_runs(tokenizer: Tokenizer) -> None:
    async with behind_uvicorn(core(), tokenizer) as frontend:
        frontend.core.paused = True
        asking = asyncio.create_task(frontend.http.post("/v1/embeddings", json={"input": ["x", "y"]}))
        await until(lambda: len(frontend.core.sent(Submit)) == 2)
        asking.cancel()
        await until(lambda: len(frontend.core.sent(Abort)) == 2)
        assert frontend.state.metrics.finished["abort"] == 2


async def test_an_error_of_one_of_several_inputs_says_which(tokenizer: Tokenizer) -> None:
    async with in_process(core(), tokenizer) as frontend:
        response = await frontend.http.post("/v1/embeddings", json={"input": ["ok", "a " * 20_000]})
    assert response.json()["error"]["message"].startswith("input[1]: This model's maximum context length")
