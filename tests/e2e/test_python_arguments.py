"""Arguments of any kind and type: each call gives a result or an error of ours, and the engine goes on answering."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllm import LLM, AsyncEngine, BeamSearchParams, LLMEngine, RequestOutputKind, SamplingParams, SchedulingParams
from pyllm.config.option_reading import option_names
from pyllm.config.vllm_flags import VLLM_FLAGS
from pyllm.errors import ConfigError, PyllmError, RequestError
from pyllm.machine.extras import is_installed

ONE = SamplingParams(max_tokens=1, temperature=0.0)
SAY = [{"role": "user", "content": "hi"}]


def tensors() -> list[Any]:
    """Tensors of torch, where it is installed: the engine needs none."""
    if not is_installed("torch"):
        return []
    import torch

    return [torch.tensor(1), torch.tensor([1, 2]), torch.tensor([0.5]), torch.tensor([[1], [2]])]


ODD = [
    *(
        None,
        True,
        -1,
        0,
        3,
        2**70,
        10**400,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\0",
        "\ud800",
        b"x",
        object(),
        len,
    ),
    *([], [1], ["x"], [None], [[1]], [{}], {}, {"a": 1}, {1: 2}, {1}, (1, 2), range(3), Path("/nowhere")),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array([1, 2]), np.array([[1], [2]]), np.array(7)),
    *tensors(),
]
OPTIONS = ["model", *option_names(), *(flag.replace("-", "_") for flag in VLLM_FLAGS)]
SCALARS = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["prompt", "prompt_token_ids", "role", "content", "cache_salt"]), inner)
    ),
    max_leaves=5,
)


def fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[str]:
    return st.sampled_from([field.name for field in msgspec.structs.fields(kind)])


def with_argument(call: Callable[..., Any], *names: str) -> st.SearchStrategy[Callable[[Any], Any]]:
    """The call with one of these arguments."""
    return st.sampled_from(names).map(lambda name: lambda value: call(**{name: value}))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes="8MiB") as llm:
        yield llm


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array([1]), [], 0])
def test_what_is_no_adapter_is_refused_with_the_arguments_name(llm: LLM, value: Any) -> None:
    with pytest.raises(PyllmError, match="lora_request"):
        llm.generate("hi", ONE, lora_request=value, use_tqdm=False)


@given(data=st.data(), value=ANYTHING)
@settings(max_examples=120)
def test_every_argument_of_llm_may_be_anything(llm: LLM, data: st.DataObject, value: Any) -> None:
    def generate(**arguments: Any) -> Any:
        return llm.generate(**{"prompts": "hi", "sampling_params": ONE, "use_tqdm": False} | arguments)

    def chat(**arguments: Any) -> Any:
        return llm.chat(**{"messages": SAY, "sampling_params": ONE, "use_tqdm": False} | arguments)

    call = data.draw(
        st.one_of(
            with_argument(generate, "prompts", "sampling_params", "lora_request", "priority", "scheduling"),
            with_argument(generate, "tokenization_kwargs", "mm_processor_kwargs"),
            with_argument(chat, "messages", "sampling_params", "lora_request", "chat_template", "tools", "priority"),
            with_argument(chat, "chat_template_content_format", "add_generation_prompt", "continue_final_message"),
            with_argument(chat, "chat_template_kwargs", "mm_processor_kwargs", "tokenization_kwargs", "scheduling"),
            with_argument(lambda **given: llm.embed("hi", use_tqdm=False, **given), "dimensions", "pooling_params"),
            with_argument(lambda **given: llm.beam_search("hi", **given), "params"),
            with_argument(llm.get_summary, "window"),
            fields(SamplingParams).map(
                lambda name: lambda value: generate(sampling_params=SamplingParams(**{"max_tokens": 2, name: value}))
            ),
            fields(SchedulingParams).map(
                lambda name: lambda value: generate(scheduling=SchedulingParams(**{name: value}))
            ),
            fields(BeamSearchParams).map(
                lambda name: (
                    lambda value: llm.beam_search(
                        "hi", BeamSearchParams(**{"beam_width": 2, "max_tokens": 2} | {name: value})
                    )
                )
            ),
        )
    )
    with contextlib.suppress(PyllmError):
        call(value)
    assert len(llm.generate([1], ONE, use_tqdm=False)[0].outputs[0].token_ids) == 1


async def test_every_argument_of_async_engine_may_be_anything(model: str) -> None:
    async def last(outputs: AsyncIterator[Any]) -> None:
        async for _ in outputs:
            pass

    async with AsyncEngine(model, kv_cache_memory_bytes="8MiB") as engine:
        for value in ODD:
            for call in (
                lambda given: last(engine.generate("hi", ONE, request_id=given)),
                lambda given: last(engine.generate("hi", ONE, priority=given, trace_headers=given)),
                lambda given: last(engine.generate(given, ONE)),
                lambda given: last(engine.chat(SAY, ONE, rendering=given)),
                lambda given: engine.complete("hi", given),
                lambda given: engine.embed("hi", scheduling=given),
                engine.explain,
                engine.decisions,
                lambda given: engine.reconfigure(max_num_seqs=given),
            ):
                with contextlib.suppress(PyllmError):
                    await call(value)
            with contextlib.suppress(PyllmError):
                engine.abort(value)
        assert (await engine.complete("hi", ONE)).finished


def test_every_argument_of_llm_engine_may_be_anything(model: str) -> None:
    engine = LLMEngine(model, kv_cache_memory_bytes="8MiB")
    for number, value in enumerate(ODD):
        for arguments in (
            {"request_id": value, "prompt": "hi", "params": ONE},
            {"request_id": f"a{number}", "prompt": value, "params": ONE},
            {"request_id": f"b{number}", "prompt": "hi", "params": value},
            {"request_id": f"c{number}", "prompt": "hi", "params": ONE, "priority": value, "scheduling": value},
        ):
            with contextlib.suppress(PyllmError):
                engine.add_request(**arguments)
        with contextlib.suppress(PyllmError):
            engine.abort(value)
    while engine.has_unfinished_requests():
        engine.step()
    engine.add_request("last", "hi", ONE)
    # A step may still be in flight that was planned before an end of sequence was known.
    outputs = engine.step() or engine.step()
    assert outputs[-1].request_id == "last"
    engine.close()


@given(name=st.sampled_from(OPTIONS), value=ANYTHING)
def test_every_option_may_be_anything(model: str, name: str, value: Any) -> None:
    """Making an engine reads and checks its options, and starts nothing."""
    with contextlib.suppress(ConfigError):
        AsyncEngine(**{"model": model, "device": "cpu", name: value})


def test_errors_name_the_argument_the_value_and_what_is_expected(llm: LLM) -> None:
    for call, text in (
        (
            lambda: llm.generate(5),
            "prompts must be a text, a list of token ids, or a dict .* list of such, got 5",
        ),
        (lambda: llm.generate("hi", "greedy"), "sampling_params must be a SamplingParams, got 'greedy'"),
        (lambda: llm.generate(["a", "b"], [ONE]), "sampling_params has 1 for 2 prompts: give one for all"),
        (lambda: llm.generate("hi", use_tqdm="yes"), "use_tqdm must be True or False, got 'yes'"),
        (lambda: llm.generate("hi", lora_request="mine"), "lora_request must be a LoRARequest, got 'mine'"),
        (
            lambda: llm.chat(SAY, mm_processor_kwargs={"a": 1}),
            "mm_processor_kwargs can only be None here.*: prompts",
        ),
        (lambda: llm.generate("hi", scheduling="fast"), "scheduling must be a SchedulingParams, got 'fast'"),
        (lambda: SamplingParams(top_k="5"), "top_k must be a whole number, got '5'"),
        (lambda: SamplingParams(max_tokens=True), "max_tokens must be a whole number, got True"),
        (lambda: SamplingParams(temperature=None), "temperature must be a number, got None"),
        (lambda: SamplingParams(temperature=float("nan")), "temperature must be from 0 to 100, got nan"),
        (lambda: SamplingParams(best_of=3), "best_of can only be None here, got 3: set n"),
    ):
        with pytest.raises(RequestError, match=f"^{text}"):
            call()


def test_vllms_keywords_with_their_defaults_change_nothing(llm: LLM) -> None:
    neutral = {"lora_request": None, "tokenization_kwargs": {}, "mm_processor_kwargs": None, "use_tqdm": None}
    (plain,) = llm.generate("hi", ONE, use_tqdm=False)
    (same,) = llm.generate("hi", ONE, **neutral)
    assert same.outputs == plain.outputs
    (chat,) = llm.chat(SAY, ONE, **neutral)
    rendered = llm.get_tokenizer().apply_chat_template(SAY, tokenize=False, add_generation_prompt=True)
    assert chat.prompt == rendered
    assert chat.prompt_token_ids == llm.get_tokenizer().encode(rendered, add_special_tokens=False)


def test_without_max_tokens_an_output_has_vllms_16(llm: LLM) -> None:
    for sampling in (None, SamplingParams(temperature=0.0, ignore_eos=True), llm.get_default_sampling_params()):
        for output in (llm.generate("hi", sampling, use_tqdm=False), llm.chat(SAY, sampling, use_tqdm=False)):
            assert len(output[0].outputs[0].token_ids) <= 16
    assert llm.get_default_sampling_params() == SamplingParams()
    (endless,) = llm.generate("hi", SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)
    assert len(endless.outputs[0].token_ids) > 16


def test_a_prompt_is_truncated_to_its_last_tokens(llm: LLM) -> None:
    for limit, length in ((3, 3), (-1, 510), (None, None)):
        sampling = SamplingParams(max_tokens=2, truncate_prompt_tokens=limit)
        if length is None:
            with pytest.raises(RequestError, match="maximum context length is 512"):
                llm.generate("x" * 600, sampling, use_tqdm=False)
            continue
        (output,) = llm.generate("y" + "x" * 600, sampling, use_tqdm=False)
        assert output.prompt_token_ids == llm.get_tokenizer().encode("x" * length)
        assert len(output.outputs[0].token_ids) <= 2


@pytest.mark.parametrize("wrong", ["x" * 600, "", None, [10**6], {"prompt": 5}])
def test_an_error_says_which_prompt_it_is_about(llm: LLM, wrong: Any) -> None:
    with pytest.raises(RequestError, match=r"^prompts\[1\]: "):
        llm.generate(["ok", wrong, "ok"], use_tqdm=False)


def test_a_prompt_alone_is_scored(llm: LLM) -> None:
    (output,) = llm.generate("abc", SamplingParams(max_tokens=0, prompt_logprobs=1), use_tqdm=False)
    assert (output.outputs[0].token_ids, output.outputs[0].text, output.outputs[0].finish_reason) == ([], "", "length")
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


async def test_a_request_gives_the_outputs_that_it_asks_for(model: str) -> None:
    def asking(kind: RequestOutputKind, interval: int | None = None) -> SamplingParams:
        return SamplingParams(
            temperature=0.0, max_tokens=9, ignore_eos=True, output_kind=kind, stream_interval=interval
        )

    async with AsyncEngine(Path(model), kv_cache_memory_bytes="8MiB") as engine:
        (final,) = [each async for each in engine.generate("hi", asking(RequestOutputKind.FINAL_ONLY))]
        parts = [each async for each in engine.generate("hi", asking(RequestOutputKind.DELTA))]
        assert "".join(part.outputs[0].text for part in parts) == final.outputs[0].text
        assert [token for part in parts for token in part.outputs[0].token_ids] == final.outputs[0].token_ids
        spaced = [each async for each in engine.generate("hi", asking(RequestOutputKind.CUMULATIVE, 4))]
        assert len(spaced) <= 4
        assert spaced[-1].outputs == final.outputs
        whole = await engine.complete("hi", asking(RequestOutputKind.DELTA))
        assert whole.outputs == final.outputs
        (chat,) = [each async for each in engine.chat(SAY, asking(RequestOutputKind.FINAL_ONLY))]
        tokenizer = engine.get_tokenizer()
        assert chat.prompt == tokenizer.apply_chat_template(SAY, tokenize=False, add_generation_prompt=True)


def test_llm_engine_gives_the_outputs_that_a_request_asks_for(model: str) -> None:
    engine = LLMEngine(model, kv_cache_memory_bytes="8MiB")
    for kind in RequestOutputKind:
        engine.add_request(kind.name, "hi", SamplingParams(temperature=0.0, max_tokens=5, output_kind=kind))
    outputs: dict[str, list[str]] = {kind.name: [] for kind in RequestOutputKind}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] += [sample.text for sample in output.outputs]
    (final,) = outputs["FINAL_ONLY"]
    assert "".join(outputs["DELTA"]) == outputs["CUMULATIVE"][-1] == final
    assert engine.get_tokenizer().eos_token == "<|end|>"
    engine.close()
