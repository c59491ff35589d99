"""A tiny random model from a Hugging Face folder, served by each kind of kernel and each executor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyllm import SamplingParams
from tests import in_process
from tests.e2e.server import Server
from tests.tiers import full
from tests.tiny_model import write_tiny_model

# Longer than one KV split of the Triton decode kernel, which is 256 positions.
PROMPT = [(7 * position) % 256 for position in range(300)]
NUM_TOKENS = 5
TWO_RANKS = ("--tensor-parallel-size", "2")


@pytest.fixture(scope="module")
def expected(model: str) -> list[str]:
    return both_referenced(model, kernel_backend="reference")


def both_referenced(model: str, **options: Any) -> list[str]:
    """The answers of an engine to a long prompt and a short one."""
    return [referenced(model, prompt, NUM_TOKENS, **options) for prompt in (PROMPT, PROMPT[:5])]


def referenced(model: str, prompt: list[int], max_tokens: int, **options: Any) -> str:
    """The answers of an engine in this process, which starts in less time than a server."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    with in_process.engine(model, dtype="float32", **options) as engine:
        text = in_process.generate(engine, [prompt], params)[0].outputs[0].text
    assert text
    return text


def generated(model: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The answers of a server to the same prompts, of which it computes the long one in chunks."""
    chunks = ("--max-num-batched-tokens", "128")
    with Server(model, "--dtype", "float32", *chunks, *arguments, environment=environment) as server:
        answers = [
            server.complete(prompt, max_tokens=NUM_TOKENS, ignore_eos=True).json() for prompt in (PROMPT, PROMPT[:5])
        ]
    return [answer["choices"][0]["text"] for answer in answers]


@pytest.mark.torch
def test_triton_kernels_give_the_tokens_of_the_reference(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, layers=1, heads=2, kv_heads=1)
    expected = both_referenced(model, kernel_backend="reference")
    assert generated(model, "--kernel-backend", "triton", environment={"TRITON_INTERPRET": "1"}) == expected


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        ("gpt-oss-clamped", (*TWO_RANKS, "--enable-expert-parallel")),
        full("gpt-oss", TWO_RANKS),
        full("qwen3-moe", ()),
        full("qwen3-moe", TWO_RANKS),
        full("qwen3-moe", (*TWO_RANKS, "--enable-expert-parallel")),
    ],
)
def test_experts_on_triton_give_the_tokens_of_the_reference(
    tmp_path: Path, family: str, ranks: tuple[str, ...]
) -> None:
    from tests.families.tiny_families import write_tiny_family

    model = write_tiny_family(tmp_path, family)
    reference = referenced(model, PROMPT[:20], 3, kernel_backend="reference")
    arguments = ("--dtype", "float32", "--kernel-backend", "triton", *ranks)
    with Server(model, *arguments, environment={"TRITON_INTERPRET": "1"}) as server:
        answer = server.complete(PROMPT[:20], max_tokens=3, ignore_eos=True).json()
    assert answer["choices"][0]["text"] == reference


def test_triton_without_card_or_interpreter_is_refused(model: str) -> None:
    server = Server(model, "--device", "cpu", "--kernel-backend", "triton", environment={"TRITON_INTERPRET": "0"})
    assert server.wait() == 2
    assert "kernel_backend triton" in server.log


def test_model_in_the_core_process_says_the_same(model: str, expected: list[str]) -> None:
    assert generated(model, "--distributed-executor-backend", "uni") == expected


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_planned_ahead_changes_nothing(model: str, expected: list[str], overlap: bool) -> None:
    assert both_referenced(model, async_scheduling=overlap) == expected


def test_flags_as_vllms_users_guess(model: str, expected: list[str]) -> None:
    flags = "--dtype float32 --tensor-parallel-size 3 --max-num-batched-tokens 64 --max-num-seqs 64"
    more = "--no-enable-prefix-caching --kv-cache-memory-bytes 64MiB --block-size 16 --served-model-name tiny"
    with Server(model, *flags.split(), *more.split()) as server:
        assert server.model() == "tiny"
        titles = sorted(title for process in server.tree if "worker" in (title := process.cmdline()[0]))
        assert titles == ["pyllm::worker-0-0", "pyllm::worker-0-1", "pyllm::worker-0-2"]
        answer = server.complete(PROMPT[:5], max_tokens=NUM_TOKENS, ignore_eos=True).json()
    assert answer["choices"][0]["text"] == expected[1]
