"""Logits processors and samplers of other packages: found by name, made for a request, called with what they take."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from pyllm_kernels.tensors import Tensor

from pyllm.config.plugins import LOGITS_PROCESSORS, SAMPLERS
from pyllm.errors import ConfigError
from pyllm.workers.sampling.sampling_plugins import (
    LogitsProcessor,
    SamplerPlugin,
    Tokens,
    load_logits_processor,
    load_sampler,
)

NONE = np.zeros(0, np.int32)

_asked: list[type] = []


def raised_by(arguments: Mapping[str, Any]) -> LogitsProcessor:
    """Raises the last token's logit by as much as the request says; says nothing of what it takes."""
    amount = float(arguments["amount"])

    def process(prompt: Tokens, output: Tokens, logits: torch.Tensor) -> torch.Tensor:
        _asked.append(type(logits))
        logits[int(np.append(prompt, output)[-1])] += amount
        return logits

    return process


class Halved:
    """A class of processors, with weights that torch would compute gradients for."""

    takes = "torch"

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._half = torch.full((), 0.5, requires_grad=True)

    def __call__(self, prompt: Tokens, output: Tokens, logits: torch.Tensor) -> torch.Tensor:
        return logits.double() * self._half


def negated(arguments: Mapping[str, Any]) -> LogitsProcessor:
    def process(prompt: Tokens, output: Tokens, logits: np.ndarray) -> np.ndarray:
        _asked.append(type(logits))
        return np.negative(logits)

    return process


def by_rank(arguments: Mapping[str, Any]) -> SamplerPlugin:
    """Takes the token of a rank."""
    rank = int(arguments["rank"])

    def draw(prompt: Tokens, output: Tokens, logits: torch.Tensor, uniform: float) -> int:
        return int(logits.argsort(descending=True)[rank])

    return draw


def by_uniform(arguments: Mapping[str, Any]) -> SamplerPlugin:
    return lambda prompt, output, logits, uniform: int(np.flatnonzero(np.isfinite(logits))[int(uniform * 2)])


def confused(arguments: Mapping[str, Any]) -> LogitsProcessor:
    raise AssertionError("nothing is made of it")


negated.takes = "numpy"  # type: ignore[attr-defined]  # as other packages do
by_uniform.takes = "numpy"  # type: ignore[attr-defined]  # as above
confused.takes = "jax"  # type: ignore[attr-defined]  # as above


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    _asked.clear()


def entry(name: str, factory: Callable[..., Any] | str, group: str = LOGITS_PROCESSORS) -> EntryPoint:
    return EntryPoint(name, factory if isinstance(factory, str) else f"{__name__}:{factory.__name__}", group)


def processor_of(factory: Callable[..., Any], **arguments: Any) -> LogitsProcessor:
    return load_logits_processor("own", arguments, [entry("own", factory)])


def logits_of(kind: str) -> Tensor:
    logits = np.array([0, 2, 1, -np.inf], np.float32)
    return logits if kind == "numpy" else torch.from_numpy(logits)


def test_each_request_gets_its_own_processor() -> None:
    by_two, by_three = processor_of(raised_by, amount=2), processor_of(raised_by, amount=3)
    prompt, output = np.array([0, 1], np.int32), np.array([2], np.int32)
    assert by_two(prompt, output, torch.zeros(4)).tolist() == [0, 0, 2, 0]
    assert by_three(prompt, output[:0], torch.zeros(4)).tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_silent_processor_changes_a_tensor_over_the_same_memory(kind: str) -> None:
    logits = logits_of(kind)
    changed = processor_of(raised_by, amount=4)(np.array([2], np.int32), NONE, logits)
    assert _asked == [torch.Tensor]
    assert type(changed) is type(logits)
    assert logits.tolist() == changed.tolist() == [0, 2, 5, -np.inf]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_processor_of_arrays_gets_arrays(kind: str) -> None:
    logits = logits_of(kind)
    changed = processor_of(negated)(NONE, NONE, logits)
    assert _asked == [np.ndarray]
    assert type(changed) is type(logits)
    assert changed.tolist() == [0, -2, -1, np.inf]


def test_a_processor_of_tensors_computes_no_gradients_and_may_return_another_dtype() -> None:
    changed = processor_of(Halved)(NONE, NONE, logits_of("numpy"))
    assert changed.tolist() == [0, 1, 0.5, -np.inf]
    assert isinstance(changed, np.ndarray)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_samplers_of_both_kinds(kind: str) -> None:
    offered = [entry("rank", by_rank, SAMPLERS), entry("uniform", by_uniform, SAMPLERS)]
    first, second = (load_sampler("rank", {"rank": rank}, offered) for rank in (0, 1))
    by_number = load_sampler("uniform", {}, offered)
    assert (first(NONE, NONE, logits_of(kind), 0.5), second(NONE, NONE, logits_of(kind), 0.5)) == (1, 2)
    assert [by_number(NONE, NONE, logits_of(kind), uniform) for uniform in (0.1, 0.9)] == [0, 1]


def test_what_a_factory_raises_is_the_callers_to_tell() -> None:
    with pytest.raises(KeyError, match="amount"):
        processor_of(raised_by)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load_logits_processor("other", {}, [entry("other", "nowhere:nothing")])


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="logits processor 'own' takes 'jax': it can take numpy or torch"):
        processor_of(confused)


def test_without_torch_only_processors_of_arrays_are_made() -> None:
    code = f"""
import sys
from importlib.metadata import EntryPoint
from pyllm.errors import ConfigError
from pyllm.workers.sampling.sampling_plugins import load_logits_processor, load_sampler

sys.modules["torch"] = None  # as if it were not installed
sys.modules["of_arrays"] = type(sys)("of_arrays")
sys.modules["of_arrays"].silent = lambda arguments: print("not made")
offered = [EntryPoint(name, f"of_arrays:{{name}}", "group") for name in ("silent", "made")]
offered += [EntryPoint("importing", "{__name__}:raised_by", "group")]
for load, name in ((load_logits_processor, "silent"), (load_sampler, "importing")):
    try:
        load(name, {{}}, offered)
    except ConfigError as error:
        print(error)
made = sys.modules["of_arrays"].made = lambda arguments: print("made")
made.takes = "numpy"
load_logits_processor("made", {{}}, offered)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentence = "takes tensors of torch, and torch is not installed: pip install 'pyllm[gpu]'"
    assert run.stdout.splitlines() == [
        f"logits processor 'silent' {sentence}",
        f"sampler 'importing' {sentence}",
        "made",
    ]


def test_a_name_that_nobody_or_several_offer_is_refused() -> None:
    offered = [entry("raise", raised_by)]
    with pytest.raises(ConfigError, match=r"no logits processor 'lower'; there are raise; .* group pyllm\.logits_proc"):
        load_logits_processor("lower", {}, offered)
    with pytest.raises(ConfigError, match="is offered as a:b and c:d: uninstall all packages but one"):
        load_logits_processor("raise", {}, [entry("raise", "a:b"), entry("raise", "c:d")])
    with pytest.raises(ConfigError, match="there is no logits processor 'lower'; there are none;"):
        load_logits_processor("lower", {}, [])
    with pytest.raises(ConfigError, match=r"there is no sampler 'eta'; .* group pyllm\.samplers"):
        load_sampler("eta", {}, [])


def test_entry_points_of_the_environment_are_looked_at() -> None:
    with pytest.raises(ConfigError, match="there is no logits processor 'of nobody'"):
        load_logits_processor("of nobody", {})
