"""`/v1/completions`, streamed and not, over a scripted core."""

from array import array
from collections import defaultdict
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.errors import GivenUpError, RequestError
from pyllm.frontend.openai.parameters import split_prompts
from pyllm.frontend.text.tokenizer import Tokenizer
from pyllm.wire.messages import FinishCode, Rejected, Sampling, Submit
from tests.client.fake_core import MODEL, ExpiringCore, Row, ScriptedCore
from tests.frontend.ignoring import check_no_effect
from tests.frontend.serving import Frontend, answering, events, in_process
from tests.frontend.text import tiny_tokenizers

TEXT = "Hello 🙂 world"


async def complete(frontend: Frontend, **body: Any) -> dict[str, Any]:
    response = await frontend.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(frontend: Frontend, **body: Any) -> list[dict[str, Any]]:
    response = await frontend.http.post("/v1/completions", json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response.text)


async def test_an_answer_has_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        answer = await complete(frontend, model="tiny", prompt="Hello")
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("system_fingerprint").startswith("fp_")
    choice = {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    choice |= {"prompt_logprobs": None, "token_ids": None, "prompt_token_ids": None}  # as in vLLM
    num_tokens = len(tokenizer.encode(TEXT)) + 1
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [choice],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": num_tokens,
            "total_tokens": num_tokens + 1,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


async def test_a_suffix_asks_for_what_is_between(tmp_path: Path) -> None:
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"])
    tokenizer = tiny_tokenizers.load(made, tmp_path)
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        assert (await complete(frontend, prompt=["def ", "x"], suffix="end"))["choices"][0]["text"] == TEXT
        first, second = frontend.core.sent(Submit)
        await complete(frontend, prompt="a", suffix="")
        for body, field in (({"prompt": [5]}, "suffix"), ({"prompt": "a", "echo": True}, "echo")):
            answer = await frontend.http.post("/v1/completions", json={"suffix": "b", **body})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    prompts = [tokenizer.decode(array("i", each.prompt).tolist(), False) for each in (first, second)]
    assert prompts == [f"<|fim_prefix|>{text}<|fim_suffix|>end<|fim_middle|>" for text in ("def ", "x")]
    assert made.token_to_id("<|fim_pad|>") in array("i", first.stop_token_ids)


async def test_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        answer = await frontend.http.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")


async def test_max_tokens_is_16_unless_it_is_given(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "x" * 100), tokenizer) as frontend:
        for body, length in (({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": None}, 16)):
            choice = (await complete(frontend, prompt="a", **body))["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("x" * length, "length")


async def test_prompts_are_text_or_token_ids_one_or_many(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for prompt in ("Hello", [5, 6], ["Hello", "x"], [[5], [6, 7]], ["Hello", [5]]):
            answer = await complete(frontend, prompt=prompt)
            assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    prompts = [array("i", submit.prompt).tolist() for submit in frontend.core.sent(Submit)]
    hello, x = tokenizer.encode("Hello"), tokenizer.encode("x")
    assert prompts == [hello, [5, 6], hello, x, [5], [6, 7], hello, [5]]


@pytest.mark.parametrize(
    ("prompt", "text"), [([], "empty list"), ([1, "x"], "mixes"), ([1, [2]], "mixes"), ([""] * 1025, "at most 1024")]
)
def test_what_is_no_list_of_prompts_is_refused(prompt: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        split_prompts(prompt, "prompt", 1024)


async def test_choices_are_numbered_prompt_by_prompt(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, *tokenizer.encode("ab")[: sample + 1], 0])
    async with in_process(core, tokenizer) as frontend:
        answer = await complete(frontend, prompt=["x", "yy"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["xa", "xab", "yya", "yyab"]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 3 + 4 + 4 + 5
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


async def test_a_stream_adds_up_to_the_answer(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, *tokenizer.encode(TEXT)[: sample + 4], 0])
    body: dict[str, Any] = {"prompt": ["x", "yy"], "n": 3, "max_tokens": 30}
    async with in_process(core, tokenizer) as frontend:
        answer = await complete(frontend, **body)
        chunks = await stream(frontend, **body, stream_options={"include_usage": True})
    *chunks, last = chunks
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    for chunk in chunks:
        assert chunk["usage"] is None
        assert (chunk["id"], chunk["object"], chunk["model"]) == (last["id"], "text_completion", "tiny")
        for choice in chunk["choices"]:
            assert choice["index"] not in reasons
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"] is not None:
                reasons[choice["index"]] = choice["finish_reason"]
    assert [texts[index] for index in range(6)] == [choice["text"] for choice in answer["choices"]]
    assert [reasons[index] for index in range(6)] == [choice["finish_reason"] for choice in answer["choices"]]


async def test_without_the_option_no_chunk_has_a_usage(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, TEXT), tokenizer) as frontend:
        chunks = await stream(frontend, prompt="x")
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hello", " ", "🙂", " world", ""]


async def test_each_chunk_has_the_usage_of_its_choice_where_it_is_wanted(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*prompt, *tokenizer.encode("abc")[: sample + 1], 0])
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with in_process(core, tokenizer) as frontend:
        *chunks, last = await stream(frontend, prompt=["x", "yy"], n=2, stream_options=options)
        conversation = {"messages": [{"role": "user", "content": "x"}], "stream": True, "stream_options": options}
        response = await frontend.http.post("/v1/chat/completions", json={**conversation, "max_tokens": 2})
    counts: dict[int, list[int]] = defaultdict(list)
    for chunk in chunks:
        index = chunk["choices"][0]["index"]
        assert chunk["usage"]["prompt_tokens"] == index // 2 + 1
        assert chunk["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        counts[index].append(chunk["usage"]["completion_tokens"])
    assert counts == {0: [1, 2, 3], 1: [1, 2, 3, 4], 2: [1, 2, 3, 4], 3: [1, 2, 3, 4, 5]}
    assert last["usage"]["completion_tokens"] == 3 + 4 + 4 + 5
    assert [chunk["usage"]["completion_tokens"] for chunk in events(response.text)] == [0, 2, 2]


async def test_a_stop_string_ends_the_text_and_the_count(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "one two stop three"), tokenizer) as frontend:
        answer = await complete(frontend, prompt="x", stop=["stop"], max_tokens=50)
        chunks = await stream(frontend, prompt="x", stop="stop", max_tokens=50)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one two ", "stop", "stop")
    assert answer["usage"]["completion_tokens"] == len(tokenizer.encode("one two stop"))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one two "
    assert frontend.core.running == {}


async def test_forty_stop_strings_end_it_where_the_first_of_them_does(tokenizer: Tokenizer) -> None:
    stops = [f"stop number {number}" for number in range(38)] + ["ree fo", "e four"]
    async with in_process(answering(tokenizer, "one stop number x two three four"), tokenizer) as frontend:
        answer = await complete(frontend, prompt=["x", "y"], n=2, stop=stops, max_tokens=50)
        chunks = await stream(frontend, prompt="x", stop=stops, max_tokens=50)
        none = await complete(frontend, prompt="x", stop=stops[:38], max_tokens=50)
    assert [(choice["text"], choice["stop_reason"]) for choice in answer["choices"]] == [
        ("one stop number x two th", "ree fo")
    ] * 4
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one stop number x two th"
    assert none["choices"][0]["text"] == "one stop number x two three four"


async def test_too_many_stop_strings_are_refused_with_their_number(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        for stop, numbers in ((["x"] * 1025, "at most 1024 strings, got 1025"), (["x" * 1025], "1024 characters each")):
            response = await frontend.http.post("/v1/completions", json={"prompt": "x", "stop": stop})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "stop")
            assert numbers in error["message"]


async def test_an_aborts_row_does_not_hide_the_cached_tokens(tokenizer: Tokenizer) -> None:
    class Aborting(ScriptedCore):
        def _step(self) -> None:
            super()._step()
            for key in list(self.running):
                del self.running[key]
                self.say_rows(Row(key[0], [], 1, key[1], FinishCode.ABORT))

    async with in_process(Aborting(lambda prompt, sample: [5, 6]), tokenizer) as frontend:
        answer = await complete(frontend, prompt="x", n=2)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort", "abort"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_a_stop_token_is_named(tokenizer: Tokenizer) -> None:
    token = tokenizer.encode("b")[0]
    async with in_process(answering(tokenizer, "abc"), tokenizer) as frontend:
        choice = (await complete(frontend, prompt="x", stop_token_ids=[token]))["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", token)


async def test_the_seed_reaches_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await complete(frontend, prompt="x", seed=42, temperature=0.5)
        for _ in range(4):
            await complete(frontend, prompt="x", seed=-1)  # random, as at vLLM, llama.cpp and Ollama
    submit, *others = frontend.core.sent(Submit)
    assert (submit.seed, submit.sampling.temperature) == (42, 0.5)
    assert len({other.seed for other in others}) == 4


async def test_scheduling_reaches_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await complete(frontend, prompt=["x", "y"], priority=-1, timeout=30, ttft_target=0.5, tpot_target=0.1)
        await complete(frontend, prompt="x", min_tokens=0)
    *asked, plain = frontend.core.sent(Submit)
    assert len(asked) == 2
    for submit in asked:
        assert (submit.priority, submit.tenant) == (-1, "")
        assert 0 < submit.timeout <= 30.0  # What is left of it.
        assert (submit.ttft_target, submit.tpot_target) == (0.5, 0.1)
    assert (plain.priority, plain.timeout) == (0, None)


async def test_a_deadline_ends_the_text_with_what_there_is(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"prompt": "x", "n": 2, "timeout": 0.5, "stop": "ok!"}
    async with in_process(ExpiringCore(lambda prompt, sample: tokenizer.encode("ok")), tokenizer) as frontend:
        answer = await complete(frontend, **body)
        *chunks, last = await stream(frontend, **body, stream_options={"include_usage": True})
        metrics = (await frontend.http.get("/metrics")).text
    expected = [("o", "length", None)] * 2
    assert [(each["text"], each["finish_reason"], each["stop_reason"]) for each in answer["choices"]] == expected
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == "oo"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == last["usage"]["completion_tokens"] == 2
    assert answer["usage"]["finish_reason"] == last["usage"]["finish_reason"] == "deadline"
    assert 'finished_reason="deadline",model_name="tiny"} 4.0' in metrics


async def test_what_changes_logits_reaches_the_core(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": 1000},
        "allowed_token_ids": [6, 5],
        "bad_words": ["ab", " Hello"],
        "min_tokens": 2,
        "stop_token_ids": [9],
        "vllm_xargs": {"mine": {"x": 1}},
    }
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await complete(frontend, prompt="x", **body)
    (submit,) = frontend.core.sent(Submit)
    words = [tokenizer.encode(word, add_special_tokens=False) for word in ("ab", "Hello")]
    assert submit.sampling == Sampling(
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={7: 100.0},
        allowed_token_ids=array("i", [5, 6]).tobytes(),
        bad_words=tuple(array("i", word).tobytes() for word in words),
        min_tokens=2,
        stop_token_ids=array("i", [0, 9]).tobytes(),
        extra_args={"mine": {"x": 1}},
    )
    assert submit.min_tokens == 2


async def test_forms_and_beams_reach_the_core(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        await complete(frontend, prompt=["x", "y"], structured_outputs={"choice": ["a", "b"]})
        await complete(frontend, prompt="x", response_format={"type": "json_object"})
        answer = await complete(frontend, prompt="x", use_beam_search=True, n=2, length_penalty=0.5)
    *choices, json_object, beams = frontend.core.sent(Submit)
    assert [submit.sampling.grammar for submit in choices] == ['start: "a" | "b"'] * 2
    assert '"type":"object"' in json_object.sampling.grammar
    assert (beams.beam_width, beams.n, beams.length_penalty, beams.sampling.logprobs) == (2, 2, 0.5, 4)
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]


async def test_stop_strings_wait_for_the_tokens_to_come_at_least(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "a.b.c.d"), tokenizer) as frontend:
        texts = [
            (await complete(frontend, prompt="x", stop=".", min_tokens=count))["choices"][0]["text"]
            for count in (0, 2, 3)
        ]
    assert texts == ["a", "a.b", "a.b"]


async def test_log_probabilities_have_openais_shape(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "Hello 🙂!"), tokenizer) as frontend:
        choice = (await complete(frontend, prompt="x", logprobs=2, max_tokens=6))["choices"][0]
        plain = (await complete(frontend, prompt="x", logprobs=0, max_tokens=1))["choices"][0]
        none = (await complete(frontend, prompt="x", max_tokens=1))["choices"][0]
    texts = ["Hello", " ", *"����"]
    first, second = tokenizer.token_text(30), tokenizer.token_text(31)
    assert choice["logprobs"] == {
        "text_offset": [0, 5, 6, 7, 8, 9],
        "token_logprobs": [-1.0] * 6,
        "tokens": texts,
        "top_logprobs": [{text: -1.0, first: -0.5, second: -1.5} for text in texts],
    }
    assert plain["logprobs"]["top_logprobs"] == [{"Hello": -1.0}]
    assert none["logprobs"] is None


async def test_tokens_that_a_request_names_come_in_place_of_the_likeliest(tokenizer: Tokenizer) -> None:
    body: dict[str, Any] = {"prompt": "x", "logprob_token_ids": [41, 40]}
    async with in_process(answering(tokenizer, "Hello"), tokenizer) as frontend:
        choice = (await complete(frontend, **body, logprobs=5, max_tokens=1))["choices"][0]
        echoed = await complete(frontend, **body, logprobs=1, max_tokens=1, echo=True)
        for wrong, field in (
            ({}, "logprob_token_ids"),
            ({"logprobs": 1, "echo": True, "max_tokens": 0}, "logprob_token_ids"),
            ({"logprobs": 1, "use_beam_search": True}, "logprob_token_ids"),
            ({"logprobs": 1, "logprob_token_ids": [600]}, "logprob_token_ids"),
        ):
            answer = await frontend.http.post("/v1/completions", json=body | wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    named = {tokenizer.token_text(41): -2.0, tokenizer.token_text(40): -3.0}
    assert choice["logprobs"]["top_logprobs"] == [{"Hello": -1.0, **named}]
    assert echoed["choices"][0]["logprobs"]["top_logprobs"] == [None, {"Hello": -1.0, **named}]


async def test_a_streams_log_probabilities_add_up_to_the_answers(tokenizer: Tokenizer) -> None:
    core = ScriptedCore(lambda prompt, sample: [*tokenizer.encode("one two stop")[: sample * 20 + 4], 0])
    body: dict[str, Any] = {"prompt": "x", "n": 2, "max_tokens": 30, "logprobs": 1, "stop": "stop"}
    async with in_process(core, tokenizer) as frontend:
        answer = await complete(frontend, **body)
        chunks = await stream(frontend, **body)
    for expected in answer["choices"]:
        total: dict[str, list[Any]] = defaultdict(list)
        text = ""
        for chunk in chunks:
            for choice in chunk["choices"]:
                if choice["index"] == expected["index"]:
                    text += choice["text"]
                    for name, values in (choice["logprobs"] or {}).items():
                        total[name] += values
        assert (text, total) == (expected["text"], expected["logprobs"])
    assert answer["choices"][1]["text"] == "one two "
    assert "".join(answer["choices"][1]["logprobs"]["tokens"]) == "one two stop"


async def test_log_probabilities_of_prompts_go_with_each_choice(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        answer = await complete(frontend, prompt=["Hello!", "y"], n=2, prompt_logprobs=1)
    _, second = tokenizer.encode("Hello!")
    expected = [
        None,
        {
            str(second): {"logprob": -1.0, "rank": 2, "decoded_token": "!"},
            "30": {"logprob": -0.5, "rank": 1, "decoded_token": tokenizer.token_text(30)},
        },
    ]
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [expected, expected, [None], [None]]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("body", "status", "parameter"),
    [
        ({"prompt": "x" * 300}, 400, "prompt"),
        ({"prompt": "x" * 100_000}, 400, "prompt"),
        ({"prompt": ["ok", "x" * 300]}, 400, "prompt"),
        ({"prompt": [-1000]}, 400, "prompt"),
        ({"prompt": [2**40]}, 400, "prompt"),
        ({"prompt": [600]}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": "x", "max_tokens": -2}, 400, "max_tokens"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": "x", "logprobs": 21}, 400, "logprobs"),
        ({"prompt": "x", "logprobs": True}, 400, "logprobs"),
        ({"prompt": "x", "presence_penalty": 3}, 400, "presence_penalty"),
        ({"prompt": "x", "logit_bias": {"600": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"-1": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "bad_words": [" "]}, 400, "bad_words"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "use_beam_search": True}, 400, "echo"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "cache_salt": "a@b"}, 400, "cache_salt"),
        ({"prompt": "x", "cache_salt": ""}, 400, "cache_salt"),
        ({"prompt": "x", "truncation_side": "left"}, 400, "truncation_side"),
        ({"prompt": "x", "request_id": "a b"}, 400, "request_id"),
        ({"prompt": "x", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
        ({"prompt": "x", "truncate_prompt_tokens": 257}, 400, "truncate_prompt_tokens"),
        ({"prompt": "x", "structured_outputs": {}}, 400, "structured_outputs"),
        ({"prompt": "x", "structured_outputs": {"choice": []}}, 400, "structured_outputs"),
        ({"prompt": "x", "structured_outputs": {"structural_tag": "x"}}, 400, "structured_outputs.structural_tag"),
        (
            {"prompt": "x", "structured_outputs": {"regex": "a", "whitespace_pattern": "x"}},
            400,
            "structured_outputs.whitespace_pattern",
        ),
        ({"prompt": "x", "structured_outputs": {"regex": "a"}, "ignore_eos": True}, 400, "ignore_eos"),
        ({"prompt": "x", "response_format": {"type": "structural_tag"}}, 400, "response_format.type"),
        ({"prompt": "x", "vllm_xargs": 5}, 400, "vllm_xargs"),
        ({"prompt": ["x"] * 100, "n": 200}, 400, "n"),
        ({"prompt": "x", "n": 9}, 400, "n"),
        ({"prompt": "x", "priority": 2**31}, 400, "priority"),
        ({"prompt": "x", "priority": 0.5}, 400, "priority"),
        ({"prompt": "x", "timeout": 0}, 400, "timeout"),
        ({"prompt": "x", "ttft_target": -1}, 400, "ttft_target"),
        ({"prompt": "x", "tpot_target": "fast"}, 400, "tpot_target"),
        ({"prompt": "x", "min_tokens": 17}, 400, "min_tokens"),
        ({"prompt": "x", "repetition_penalty": 1e39}, 400, "repetition_penalty"),
        ({"prompt": "x", "repetition_penalty": 1e-50}, 400, "repetition_penalty"),
        ({"prompt": 5}, 400, "prompt"),
        ({}, 400, None),
    ],
)
async def test_what_cannot_run_is_refused_and_the_next_request_is_served(
    tokenizer: Tokenizer, streamed: bool, body: dict[str, Any], status: int, parameter: str | None
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/completions", json={**body, "stream": streamed})
        assert response.status_code == status
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", parameter)
        assert set(error) == {"message", "type", "param", "code"}
        assert (await complete(frontend, prompt="x"))["choices"][0]["text"] == "ok"
        assert frontend.core.running == {}


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"tenant": "acme"}, ["tenant"]),
        (
            {"separate_things": True, "session_id": "s", "stream_interval": 5},
            ["separate_things", "session_id", "stream_interval"],
        ),
        ({"stream_reasoning": False, "max_token": 3}, ["max_token", "stream_reasoning"]),
    ],
)
async def test_what_has_no_effect_is_told_and_refused_by_a_strict_server(
    tokenizer: Tokenizer, extra: dict[str, Any], names: list[str]
) -> None:
    body = {"prompt": "x"}
    serve = partial(_serve, tokenizer)
    await check_no_effect(serve, "/v1/completions", body | extra, body, *names)


def _serve(tokenizer: Tokenizer, server: ServerConfig) -> AbstractAsyncContextManager[Frontend]:
    return in_process(answering(tokenizer, "ok"), tokenizer, server=server)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("code", "status"), [("invalid", 400), ("failed", 400), ("error", 500)])
async def test_what_the_core_rejects_before_the_first_token_has_a_status(
    tokenizer: Tokenizer, streamed: bool, code: str, status: int
) -> None:
    class Rejecting(ScriptedCore):
        def handle(self, message: Any) -> None:
            if isinstance(message, Submit):
                self.say(Rejected(message.request, code, "it can never fit", "structured_outputs"))
            else:
                super().handle(message)

    async with in_process(Rejecting(lambda prompt, sample: []), tokenizer) as frontend:
        for prompt in ("x", ["x", "y"]):
            response = await frontend.http.post("/v1/completions", json={"prompt": prompt, "stream": streamed})
            assert response.status_code == status
            error = response.json()["error"]
            assert error["message"] == "it can never fit"
            assert error["param"] == (None if status == 500 else "structured_outputs")


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
async def test_an_error_in_a_stream_is_an_event_after_what_was_said(tokenizer: Tokenizer, prompt: Any) -> None:
    class Dying(ScriptedCore):
        def _step(self) -> None:
            super()._step()
            self.end()

    async with in_process(Dying(lambda prompt, sample: tokenizer.encode(TEXT)), tokenizer) as frontend:
        *chunks, error = await stream(frontend, prompt=prompt)
        assert {chunk["choices"][0]["text"] for chunk in chunks} == {"Hello"}
        assert error["error"]["type"] == "server_error"
        assert "the engine was shut down" in error["error"]["message"]
        frontend.client.give_up(GivenUpError("it died too often"))
        response = await frontend.http.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 503


async def test_special_tokens_are_left_out_where_they_are_not_wanted(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "a<|start|>b"), tokenizer) as frontend:
        assert (await complete(frontend, prompt="x"))["choices"][0]["text"] == "ab"
        assert (await complete(frontend, prompt="x", skip_special_tokens=False))["choices"][0]["text"] == "a<|start|>b"


async def test_max_tokens_are_clipped_to_the_context(tokenizer: Tokenizer) -> None:
    model = msgspec.structs.replace(MODEL, max_model_len=10)
    core = ScriptedCore(lambda prompt, sample: tokenizer.encode("x" * 100), model)
    async with in_process(core, tokenizer) as frontend:
        answer = await complete(frontend, prompt="abcd", max_tokens=1000)
        told = await frontend.http.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 1000})
        exact = await frontend.http.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 6})
    assert answer["usage"]["total_tokens"] == 10
    assert told.headers["pyllm-max-tokens"] == str(10 - answer["usage"]["prompt_tokens"])
    assert (exact.json()["usage"]["completion_tokens"], "pyllm-max-tokens" in exact.headers) == (6, False)


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        (["ok", "a " * 20_000], "prompt[1]: This model's maximum context length"),
        (["ok", "ok", [1] * MODEL.max_model_len], "prompt[2]: This model's maximum context length"),
        ([[1], [600]], "prompt[1]: token id 600 is outside the vocabulary"),
        (["ok", ""], "prompt[1]: the prompt is empty"),
        ([[600]], "token id 600 is outside the vocabulary"),
    ],
)
async def test_an_error_of_one_of_several_prompts_says_which(
    tokenizer: Tokenizer, prompts: list[Any], text: str
) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        response = await frontend.http.post("/v1/completions", json={"prompt": prompts})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt"), error
    assert error["message"].startswith(text)
