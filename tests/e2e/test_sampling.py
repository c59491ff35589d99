"""Sampling with the embedded model: every parameter alone, among others, and however scheduled."""

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pyllm import LLM, AsyncEngine, LLMEngine, SamplingParams
from pyllm.client.logprobs import Logprob
from pyllm.errors import PyllmError, RequestError
from pyllm.frontend.text.outputs import CompletionOutput, RequestOutput
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams
from tests import in_process
from tests.e2e.stretches import stretches
from tests.in_process import KV_CACHE
from tests.schemas import SCHEMAS
from tests.tiers import full

FRANCE = "The capital of France is"
DOCUMENT = "A JSON document: "
STEPS = {"max_tokens": 24, "ignore_eos": True}
# Every way to change the next token, in a request that would do something else without it.
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.8},
    "bias": {"logit_bias": {260: 30.0}},
    "allowed": {"allowed_token_ids": [260, 354, 7042, 30, 28]},
    "bad words": {"bad_words": ["Paris", "the", "is"]},
    "least": {"min_tokens": 24, "ignore_eos": False, "stop_token_ids": [30, 28]},
    "thinking": {"thinking_token_budget": 5, "reasoning_end_token_ids": [[9617, 17400, 46]]},  # </think>
    "choice": {"structured_outputs": StructuredOutputsParams(choice=["Rome", "Berlin"]), "ignore_eos": False},
    "regex": {"structured_outputs": StructuredOutputsParams(regex=r"[0-9]{3}-[a-z]{4}"), "ignore_eos": False},
}
FEW: dict[str, Any] = {"num_gpu_blocks_override": 44, "enable_prefix_caching": False}
SCHEDULED: dict[str, dict[str, Any]] = {
    "in small chunks": {"max_num_batched_tokens": 40, "async_scheduling": False},
    "swapped out and in": FEW | {"kv_offloading_size": "64MiB"},
    "preempted and computed again": FEW,
}
PRESSED = {"expected_growth": 0.0, "watermark": 0.0}  # so that what runs does run out of blocks


def changed(**fixed: Any) -> list[SamplingParams]:
    """Each change twice: greedy and drawn."""
    every = [STEPS | change | fixed for change in CHANGES.values()]
    drawn = [SamplingParams(**params, seed=number) for number, params in enumerate(every)]
    return [SamplingParams(**params, temperature=0.0) for params in every] + drawn


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    with in_process.engine() as engine:
        yield engine


def generate(
    engine: LLMEngine, prompt: str | list[int], params: SamplingParams | Sequence[SamplingParams]
) -> list[RequestOutput]:
    """The answers to the prompt with each of the parameters, all at once."""
    each = [params] if isinstance(params, SamplingParams) else params
    return in_process.generate(engine, [prompt] * len(each), each)


@pytest.fixture(scope="module")
def alone(engine: LLMEngine) -> list[CompletionOutput]:
    """What each request gives when nothing runs beside it."""
    return [generate(engine, FRANCE, params)[0].outputs[0] for params in changed()]


def test_every_change_changes_what_comes(alone: list[CompletionOutput]) -> None:
    greedy = alone[: len(CHANGES)]
    assert len({tuple(output.token_ids) for output in greedy}) == len(CHANGES)
    by_name = dict(zip(CHANGES, greedy, strict=True))
    assert set(by_name["allowed"].token_ids) <= {260, 354, 7042, 30, 28}
    assert by_name["nothing"].text.startswith(" Paris")
    assert not any(word in by_name["bad words"].text for word in ("Paris", " the", " is"))
    assert len(by_name["least"].token_ids) >= 24
    assert by_name["choice"].text in ("Rome", "Berlin")
    assert by_name["thinking"].token_ids[:8] == [*by_name["nothing"].token_ids[:5], 9617, 17400, 46]


def test_a_budget_needs_to_know_how_reasoning_ends(engine: LLMEngine) -> None:
    with pytest.raises(RequestError, match="thinking_token_budget is not supported here: there is no reasoning parser"):
        generate(engine, FRANCE, SamplingParams(thinking_token_budget=5))


@pytest.mark.parametrize(
    "setting",
    ["swapped out and in", full("in small chunks"), full("preempted and computed again")],
)
def test_changes_depend_on_nothing_but_the_request(setting: str, alone: list[CompletionOutput]) -> None:
    with in_process.engine(**PRESSED, **SCHEDULED[setting]) as scheduled:
        outputs = generate(scheduled, FRANCE, changed() * 2)
        stats = scheduled.stats()
    assert in_process.tokens(outputs) == [output.token_ids for output in alone] * 2
    assert (stats["num_preemptions"] > 0) == ("num_gpu_blocks_override" in SCHEDULED[setting])


def test_what_repeats_itself_is_guessed_and_is_told_as_without(engine: LLMEngine) -> None:
    prompt = "One, two, three, four, five. One, two, three, four, five. One, two,"
    each = {"max_tokens": 60, "ignore_eos": True, "logprobs": 3}
    params = [SamplingParams(**each, temperature=0), SamplingParams(**each, temperature=0.5, seed=1, stop=["five. T"])]
    thinking = each | CHANGES["thinking"] | {"temperature": 0, "min_tokens": 30}
    params += [SamplingParams(**thinking | {"thinking_token_budget": budget}) for budget in (5, 10, 11)]
    before = engine.stats()["num_accepted_drafts"]
    guessed = [generate(engine, prompt, own)[0].outputs for own in params]
    assert engine.stats()["num_accepted_drafts"] >= before + 10
    with in_process.engine(num_speculative_tokens=0) as plain:
        assert [generate(plain, prompt, own)[0].outputs for own in params] == guessed
        assert plain.stats()["num_drafts"] == 0


def test_log_probabilities_of_a_prompt_are_those_that_it_was_written_with(engine: LLMEngine) -> None:
    prompts = [stretch[:100] for stretch in stretches()[:8]]
    params = SamplingParams(max_tokens=20, seed=3, logprobs=4, ignore_eos=True)
    for prompt, written in zip(prompts, in_process.generate(engine, prompts, params), strict=True):
        output = written.outputs[0]
        assert output.logprobs is not None
        assert output.cumulative_logprob == pytest.approx(
            sum(told[token].logprob for told, token in zip(output.logprobs, output.token_ids, strict=True))
        )
        for told, token in zip(output.logprobs, output.token_ids, strict=True):
            check_entries(told, token, 4)
        read = SamplingParams(max_tokens=1, prompt_logprobs=4)
        again = generate(engine, prompt + output.token_ids, read)[0].prompt_logprobs
        assert again is not None
        assert again[0] is None
        assert again[len(prompt) :] == output.logprobs
        assert len(again) == len(prompt) + len(output.token_ids)


def test_log_probabilities_of_the_whole_vocabulary_come_however_many_they_are(engine: LLMEngine) -> None:
    prompt = stretches()[0][:150]
    asked = SamplingParams(max_tokens=1, temperature=0, logprobs=5)
    (few,) = generate(engine, FRANCE, asked)[0].outputs[0].logprobs or ()
    # One message holds 113 rows of them; those of a prompt and of 20 streams come in several steps.
    params = [SamplingParams(max_tokens=1, temperature=0, logprobs=-1)] * 20
    with LLM(max_logprobs=-1, kv_cache_memory_bytes=KV_CACHE) as whole:
        scored, *streams = whole.generate(
            [prompt, *[FRANCE] * 20], [SamplingParams(max_tokens=1, prompt_logprobs=-1), *params]
        )
        assert whole.stats()["num_recoveries"] == 0
    assert scored.prompt_logprobs is not None
    _, *rows = scored.prompt_logprobs
    assert len(rows) == len(prompt) - 1
    rows += [entries for stream in streams for entries in stream.outputs[0].logprobs or ()]
    for row in rows:
        assert row is not None
        assert math.fsum(math.exp(entry.logprob) for entry in row.values()) == pytest.approx(1, abs=1e-3)
    assert all(row is not None and few.items() <= row.items() for row in rows[-20:])


def test_tokens_that_a_request_names_are_told_as_the_likeliest_are(engine: LLMEngine) -> None:
    (likeliest,) = generate(engine, FRANCE, SamplingParams(max_tokens=1, temperature=0, logprobs=6))
    assert likeliest.outputs[0].logprobs is not None
    (told,) = likeliest.outputs[0].logprobs
    named = [*told][:1:-1]
    params = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=named, n=2)
    for output in generate(engine, FRANCE, [params] * 3):
        for sample in output.outputs:
            assert sample.logprobs is not None
            (entries,) = sample.logprobs
            expected = [(token, told[token].logprob) for token in [next(iter(told)), *named]]
            assert [(token, entry.logprob) for token, entry in entries.items()] == expected


@pytest.mark.full
def test_three_ranks_sample_as_one() -> None:
    with LLM(tensor_parallel_size=3, kv_cache_memory_bytes=KV_CACHE) as llm:
        structured = of_schema(SCHEMAS[0], logprobs=0)
        (document,) = llm.generate(DOCUMENT, structured)
        check_document(SCHEMAS[0], document)
        tokens, told = document.outputs[0].token_ids, document.outputs[0].logprobs
        assert told is not None
        (read,) = llm.generate([document.prompt_token_ids + tokens], SamplingParams(max_tokens=1, prompt_logprobs=0))
        assert read.prompt_logprobs is not None
        assert read.prompt_logprobs[len(document.prompt_token_ids) :] == told
        penalised = [SamplingParams(**STEPS, temperature=0, presence_penalty=penalty) for penalty in (0.0, 2.0)]
        first, second = llm.generate([FRANCE] * 2, penalised)
        assert first.outputs[0].token_ids != second.outputs[0].token_ids


def check_entries(told: dict[int, Logprob], token: int, num_top: int) -> None:
    first, *_ = told
    assert first == token
    ranks = sorted(entry.rank for entry in told.values() if entry.rank <= num_top)
    assert ranks == list(range(1, num_top + 1))
    by_rank = sorted(told.values(), key=lambda entry: entry.rank)
    assert [entry.logprob for entry in by_rank] == sorted((entry.logprob for entry in by_rank), reverse=True)
    assert sum(math.exp(entry.logprob) for entry in told.values()) < 1.0 + 1e-4


@pytest.mark.full
def test_all_documents_are_valid(engine: LLMEngine) -> None:
    assert len(SCHEMAS) >= 200
    outputs = in_process.generate(engine, [DOCUMENT] * len(SCHEMAS), [of_schema(schema) for schema in SCHEMAS])
    for schema, output in zip(SCHEMAS, outputs, strict=True):
        check_document(schema, output)


def test_documents_are_valid_however_they_are_scheduled(engine: LLMEngine) -> None:
    some = SCHEMAS[::10]
    params = [of_schema(schema, n=2, seed=1) for schema in some]
    few = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 56, "max_model_len": 800}
    with in_process.engine(**PRESSED, **few) as pressed:
        outputs = generate(pressed, DOCUMENT, params)
        assert pressed.stats()["num_preemptions"] > 0
    for schema, output in zip(some, outputs, strict=True):
        check_document(schema, output)
    for pressed_output, output in zip(outputs, generate(engine, DOCUMENT, params), strict=True):
        assert [sample.text for sample in pressed_output.outputs] == [sample.text for sample in output.outputs]


def of_schema(schema: dict[str, Any], **more: Any) -> SamplingParams:
    structured = StructuredOutputsParams(json=schema)
    return SamplingParams(**({"max_tokens": 600, "seed": 0, "structured_outputs": structured} | more))


def check_document(schema: dict[str, Any], output: RequestOutput) -> None:
    # Binary fractions would not be multiples of 0.01.
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = Draft202012Validator(exact, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for sample in output.outputs:
        assert sample.finish_reason == "stop", f"{schema} gave {sample.text[-200:]!r} without an end"
        validator.validate(json.loads(sample.text, parse_float=Decimal))


def endless() -> StructuredOutputsParams:
    """A grammar that the library would be compiling for minutes, within all of its limits."""
    links = "".join(f'T{i}: T{i + 1} | T{i + 1} "b"\n' for i in range(3000))
    return StructuredOutputsParams(grammar=f'start: T0\n{links}T3000: "a"\n')


async def test_grammars_that_would_never_be_compiled_fail_alone_beside_a_document_that_streams() -> None:
    # Left alone, the library would be at this for minutes.
    explosive = {
        "type": "object",
        "patternProperties": {f"^(a|b{{1,9}}){{1,{number}}}$": {} for number in range(1, 1000)},
    }
    async with AsyncEngine(kv_cache_memory_bytes=KV_CACHE) as engine:

        async def chosen(word: str) -> str:
            sampling = SamplingParams(structured_outputs=StructuredOutputsParams(choice=[word]))
            return (await engine.complete(FRANCE, sampling)).outputs[0].text

        refused = asyncio.ensure_future(anext(engine.generate(FRANCE, of_schema(explosive))))
        document = engine.generate(DOCUMENT, of_schema(SCHEMAS[0]))
        texts = [output.outputs[0].text async for output in document]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
        Draft202012Validator(SCHEMAS[0]).validate(json.loads(texts[-1]))
        with pytest.raises(RequestError, match="patternProperties"):
            await refused
        sampling = SamplingParams(structured_outputs=endless())
        doomed = asyncio.ensure_future(anext(engine.generate(FRANCE, sampling)))
        assert [await chosen(word) for word in ("beside", "too")] == ["beside", "too"]
        with pytest.raises(RequestError, match="was not compiled within 3 s of processor time; make it simpler"):
            await doomed
        assert await chosen("after") == "after"
        assert (await engine.stats())["num_requests"] == 0


def only_even(arguments: dict[str, Any], prompt: Any, output: Any, logits: Any) -> Any:
    del prompt
    assert len(output) < arguments["limit"], "too long"
    logits[1::2] = float("-inf")
    return logits


def make_even(arguments: dict[str, Any]) -> Any:
    """A logits processor's factory: no odd token may come, nor more tokens than `limit`."""
    return lambda prompt, output, logits: only_even(arguments, prompt, output, logits)


def make_even_array(arguments: dict[str, Any]) -> Any:
    """The same of arrays."""
    return make_even(arguments)


make_even_array.takes = "numpy"  # type: ignore[attr-defined]  # An attribute, as plugins have it.


@pytest.mark.parametrize("factory", [make_even_array, pytest.param(make_even, marks=pytest.mark.torch)])
def test_a_logits_processor_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: Callable[[dict[str, Any]], Any]
) -> None:
    information = tmp_path / "even-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: even\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[pyllm.logits_processors]\neven = {__name__}:{factory.__name__}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
    with LLM(kv_cache_memory_bytes=KV_CACHE) as llm:
        params = [SamplingParams(**STEPS, extra_args={"even": {"limit": limit}}) for limit in (100, 100)]
        even, plain = llm.generate([FRANCE] * 2, [params[0], SamplingParams(**STEPS, temperature=0)])
        assert not any(token % 2 for token in even.outputs[0].token_ids)
        assert any(token % 2 for token in plain.outputs[0].token_ids)
        with pytest.raises(PyllmError, match="too long"):
            llm.generate(FRANCE, SamplingParams(**STEPS, extra_args={"even": {"limit": 3}}))
        with pytest.raises(RequestError, match="odd"):
            llm.generate(FRANCE, SamplingParams(**STEPS, extra_args={"odd": {}}))
        (flat,) = llm.generate([FRANCE], SamplingParams(**STEPS, extra_args={"limit": 100}))  # as in vLLM
        assert not any(token % 2 for token in flat.outputs[0].token_ids)
