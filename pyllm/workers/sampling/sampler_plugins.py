"""Samplers of other packages, in the entry-point group `pyllm.samplers`: they choose a request's tokens themselves.

An entry point is a factory: it takes a request's arguments and returns that request's sampler. The factory is called
again after a preemption, and the sampler for each token, so both must depend on their arguments only. Knows no slot.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from pyllm.config.plugins import SAMPLERS, find_entry_point
from pyllm.workers.sampling.logits_processors import Tokens

if TYPE_CHECKING:
    from torch import Tensor

# (prompt's tokens, output's tokens, logits float32 [vocab_size] on the model's device, uniform in (0, 1)) -> token id.
# Penalties, constraints and logits processors were applied to the logits, and excluded tokens have -inf; the uniform
# belongs to the position, so that a seed repeats the output.
SamplerPlugin = Callable[[Tokens, Tokens, "Tensor", float], int]


def load_sampler(name: str, arguments: Mapping[str, Any], offered: Iterable[EntryPoint] | None = None) -> SamplerPlugin:
    """Make the sampler of one request.

    Raises:
        ConfigError: no package has a sampler of that name, or several do.
        Exception: whatever the factory raises.
    """
    entry = find_entry_point("sampler", name, SAMPLERS, (), offered)
    assert entry is not None, "none is built in"
    sampler: SamplerPlugin = entry.load()(arguments)
    return sampler
