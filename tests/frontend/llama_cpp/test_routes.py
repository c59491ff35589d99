"""`/infill` over a scripted core: the prompt, the answer, the stream, and what editors send."""

from array import array
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import Submit
from tests.client.fake_core import MODEL
from tests.frontend.ignoring import HEADER
from tests.frontend.serving import Frontend, answering, in_process
from tests.frontend.text import tiny_tokenizers

TOKENS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
TEXT = "one\n  two\nthree"
# What llama.vim and llama.vscode send beside the texts.
EDITOR = {
    "id_slot": 0,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
}


@pytest.fixture
def coder(tmp_path: Path) -> Tokenizer:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(TOKENS)
    return tiny_tokenizers.load(made, tmp_path)


async def post(frontend: Frontend, **body: Any) -> httpx.Response:
    return await frontend.http.post("/infill", json=body)


async def infill(frontend: Frontend, **body: Any) -> Any:
    response = await post(frontend, **body)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(tokenizer: Tokenizer, submit: Submit) -> str:
    return tokenizer.decode(array("i", submit.prompt).tolist(), False)


async def test_an_answer_has_llama_cpps_shape(coder: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT), coder) as frontend:
        answer = await infill(frontend, input_prefix="a\n", prompt="b", input_suffix="c", n_predict=50, stop=["!"])
        ended = await infill(frontend, input_prefix="a", n_predict=3)
        stopped = await infill(frontend, input_prefix="a", n_predict=50, stop=["two"], return_tokens=True)
        (first, *_) = frontend.core.sent(Submit)
    assert prompt_of(coder, first) == "<|fim_prefix|>a\nb<|fim_suffix|>c<|fim_middle|>"
    assert answer["content"] == TEXT
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (len(coder.encode(TEXT)) + 1, 7)
    assert (answer["index"], answer["tokens"], answer["model"], answer["tokens_cached"]) == (0, [], "tiny", 2)
    assert (answer["has_new_line"], answer["truncated"]) == (True, False)
    assert answer["prompt"] == "<|fim_prefix|>a\nb<|fim_suffix|>c<|fim_middle|>"
    settings = answer["generation_settings"]
    assert (settings["n_ctx"], settings["n_predict"], settings["stop"]) == (MODEL.max_model_len, 50, ["!"])
    timings = answer["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (5, 2, answer["tokens_predicted"])
    assert (ended["content"], ended["stop_type"], ended["has_new_line"]) == ("one", "limit", False)
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("one\n  ", "word", "two")
    assert stopped["tokens"] == coder.encode("one\n  two")


async def test_files_come_first_in_the_words_of_the_family(coder: Tokenizer) -> None:
    files = [{"filename": "a.py", "text": "x = 1\n", "time": 5}, {"text": "y\n"}]
    body = {"input_extra": files, "input_prefix": "p", "input_suffix": "s", "n_predict": 4}
    async with in_process(answering(coder, TEXT), coder) as frontend:
        response = await post(frontend, **body)
        assert response.headers[HEADER] == "input_extra.time"
        await infill(frontend, **body | {"input_extra": [{"text": "long " * MODEL.max_model_len}, *files]})
        whole, cut = frontend.core.sent(Submit)
    expected = "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>tmp\ny\n<|file_sep|>filename\n"
    expected += "<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>"
    assert prompt_of(coder, whole) == expected
    # What is furthest away goes where the context has no room.
    assert prompt_of(coder, cut).endswith(f"long {expected.removeprefix('<|repo_name|>myproject' + chr(10))}")
    assert len(cut.prompt) // 4 + cut.max_tokens == min(MODEL.max_model_len, MODEL.kv_cache_tokens)


@pytest.mark.parametrize("path", ["/infill", "/v1/completions", "/v1/chat/completions"])
async def test_a_request_for_no_tokens_has_its_prompt_cached(coder: Tokenizer, path: str) -> None:
    body: dict[str, Any] = {
        "/infill": {"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "x", "filename": "f"}]},
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    }[path]
    warm = body | EDITOR | {"n_predict": 0, "samplers": [], "response_fields": [""]}
    async with in_process(answering(coder, TEXT), coder) as frontend:
        answer = await frontend.http.post(path, json=warm)
        streamed = await frontend.http.post(path, json=warm | {"stream": True})
        submits = frontend.core.sent(Submit)
    assert (answer.status_code, streamed.status_code) == (200, 200), answer.text + streamed.text
    assert "one" not in answer.text + streamed.text
    if path == "/infill":
        assert answer.json() == {}
    else:
        assert answer.json()["usage"]["completion_tokens"] == 0
        assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert [submit.max_tokens for submit in submits] == [1, 1]


async def test_what_editors_send_is_taken_and_what_they_name_is_given(coder: Tokenizer) -> None:
    names = ["content", "timings/prompt_n", "truncated", "nothing/here"]
    body = EDITOR | {"input_prefix": "x", "input_suffix": "", "n_predict": 128, "n_indent": 2}
    async with in_process(answering(coder, TEXT), coder) as frontend:
        answer = await infill(frontend, **body, response_fields=names)
        several = await infill(frontend, **body, n_cmpl=2)
        (first, second) = frontend.core.sent(Submit)
    assert answer == {"content": "one\n  two\n", "timings/prompt_n": 2, "truncated": False}
    assert [(each["index"], each["content"]) for each in several] == [(0, "one\n  two\n"), (1, "one\n  two\n")]
    assert (first.sampling.top_k, second.n) == (40, 2)


async def test_a_text_that_leaves_its_block_runs_no_further(coder: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT + " four" * 40), coder) as frontend:
        answer = await infill(frontend, input_prefix="x", n_predict=128, n_indent=1, n_cmpl=2)
    assert [each["content"] for each in answer] == ["one\n  two\n"] * 2
    assert [each["stop_type"] for each in answer] == ["limit"] * 2
    assert answer[0]["tokens_predicted"] == len(coder.encode("one\n  two\nt"))
    assert frontend.core.running == {}


@pytest.mark.parametrize("num_indent", [0, 2])
async def test_a_stream_adds_up_to_the_answer(coder: Tokenizer, num_indent: int) -> None:
    body: dict[str, Any] = {"input_prefix": "x", "n_predict": 50, "n_cmpl": 2, "n_indent": num_indent}
    async with in_process(answering(coder, TEXT), coder) as frontend:
        answers = await infill(frontend, **body)
        response = await post(frontend, **body, stream=True, response_fields=["stop", "content", "tokens_predicted"])
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, end = response.text.split("\n\n")
    assert end == ""
    events = [msgspec.json.decode(part.removeprefix("data: ")) for part in parts]
    pieces = [event for event in events if not event["stop"]]
    for answer in answers:
        own = [piece for piece in pieces if piece["index"] == answer["index"]]
        assert "".join(piece["content"] for piece in own) == answer["content"]
        if not num_indent:
            assert [token for piece in own for token in piece["tokens"]] == coder.encode(TEXT)
        assert {piece["tokens_evaluated"] for piece in own} == {answer["tokens_evaluated"]}
    last = {"stop": True, "content": "", "tokens_predicted": answers[0]["tokens_predicted"]}
    assert [event for event in events if event["stop"]] == [last] * 2


async def test_a_budget_of_reasoning_reaches_the_core(coder: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT), coder, "{# </think> #}") as frontend:
        await infill(frontend, input_prefix="x", input_suffix="y", thinking_budget_tokens=3)
        (submit,) = frontend.core.sent(Submit)
    assert submit.sampling.thinking_budget == 3
    assert coder.decode(array("i", submit.sampling.thinking_ends[0]).tolist(), False) == "</think>"


async def test_what_would_change_the_answer_is_refused_by_name(coder: Tokenizer, tokenizer: Tokenizer) -> None:
    async with in_process(answering(coder, TEXT), coder) as frontend:
        for wrong, field in (
            ({"mirostat": 2}, "mirostat"),
            ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
            ({"n_probs": 3}, "n_probs"),
            ({"n_predict": -7}, "n_predict"),
            ({"reasoning_budget_tokens": 0}, "reasoning_budget_tokens"),
            ({"input_prefix": "x" * 9000}, "prompt"),
            ({"response_fields": ["content"] * 65}, "response_fields"),
        ):
            response = await post(frontend, input_suffix="", **{"input_prefix": "x"} | wrong)
            assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        response = await post(frontend, input_prefix="x", input_suffix="y")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_suffix")
    assert "this model's vocabulary has no tokens to fill in the middle" in response.json()["error"]["message"]
