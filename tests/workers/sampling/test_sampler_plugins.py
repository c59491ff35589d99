"""Samplers of other packages: found by name, made for a request."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch

from pyllm.config.plugins import SAMPLERS
from pyllm.errors import ConfigError
from pyllm.workers.sampling.logits_processors import Tokens
from pyllm.workers.sampling.sampler_plugins import SamplerPlugin, load_sampler

HERE = "tests.workers.sampling.test_sampler_plugins"


def by_rank(arguments: Mapping[str, Any]) -> SamplerPlugin:
    """Takes the token of a rank."""
    rank = int(arguments["rank"])

    def draw(prompt: Tokens, output: Tokens, logits: torch.Tensor, uniform: float) -> int:
        return int(logits.argsort(descending=True)[rank])

    return draw


def test_each_request_gets_its_own() -> None:
    offered = [EntryPoint("rank", f"{HERE}:by_rank", SAMPLERS)]
    first, second = (load_sampler("rank", {"rank": rank}, offered) for rank in (0, 1))
    none, logits = np.zeros(0, np.int32), torch.tensor([0.0, 2.0, 1.0])
    assert (first(none, none, logits, 0.5), second(none, none, logits, 0.5)) == (1, 2)


def test_a_name_that_nobody_offers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no sampler 'eta'; .* group pyllm\.samplers"):
        load_sampler("eta", {}, [])
