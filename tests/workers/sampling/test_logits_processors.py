"""Logits processors of other packages: found by name, made for a request, called with its tokens."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch

from pyllm.config.plugins import LOGITS_PROCESSORS
from pyllm.errors import ConfigError
from pyllm.workers.sampling.logits_processors import LogitsProcessor, Tokens, load_logits_processor

HERE = "tests.workers.sampling.test_logits_processors"


def raised_by(arguments: Mapping[str, Any]) -> LogitsProcessor:
    """Raises the last token's logit by as much as the request says."""
    amount = float(arguments["amount"])

    def process(prompt: Tokens, output: Tokens, logits: torch.Tensor) -> torch.Tensor:
        logits[int(np.append(prompt, output)[-1])] += amount
        return logits

    return process


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, LOGITS_PROCESSORS)


def test_each_request_gets_its_own_processor() -> None:
    offered = [entry("raise", f"{HERE}:raised_by"), entry("other", "nowhere:nothing")]
    by_two, by_three = (load_logits_processor("raise", {"amount": amount}, offered) for amount in (2, 3))
    prompt, output = np.array([0, 1], np.int32), np.array([2], np.int32)
    assert by_two(prompt, output, torch.zeros(4)).tolist() == [0, 0, 2, 0]
    assert by_three(prompt, output[:0], torch.zeros(4)).tolist() == [0, 3, 0, 0]


def test_what_a_factory_raises_is_the_callers_to_tell() -> None:
    with pytest.raises(KeyError, match="amount"):
        load_logits_processor("raise", {}, [entry("raise", f"{HERE}:raised_by")])
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load_logits_processor("other", {}, [entry("other", "nowhere:nothing")])


def test_a_name_that_nobody_or_several_offer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no logits processor 'lower'; there are raise; .* group pyllm\.logits_proc"):
        load_logits_processor("lower", {}, [entry("raise", f"{HERE}:raised_by")])
    with pytest.raises(ConfigError, match="is offered as a:b and c:d: uninstall all packages but one"):
        load_logits_processor("raise", {}, [entry("raise", "a:b"), entry("raise", "c:d")])
    with pytest.raises(ConfigError, match="there is no logits processor 'lower'; there are none;"):
        load_logits_processor("lower", {}, [])


def test_entry_points_of_the_environment_are_looked_at() -> None:
    with pytest.raises(ConfigError, match="there is no logits processor 'of nobody'"):
        load_logits_processor("of nobody", {})
