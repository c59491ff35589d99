"""Logits processors of other packages, in the entry-point group `pyllm.logits_processors`. Knows no slot, no sampler.

An entry point is a factory: it takes a request's arguments and returns that request's processor. The factory is called
again after a preemption, and the processor for each token, so both must depend on their arguments only.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyllm.config.plugins import LOGITS_PROCESSORS, find_entry_point

if TYPE_CHECKING:
    from torch import Tensor

Tokens = npt.NDArray[np.int32]
# (prompt's tokens, output's tokens, logits float32 [vocab_size] on the model's device) -> logits of the same shape
# and dtype; it may change its argument. All parameters but temperature, min-p, top-k and top-p were applied before.
LogitsProcessor = Callable[[Tokens, Tokens, "Tensor"], "Tensor"]


def load_logits_processor(
    name: str, arguments: Mapping[str, Any], offered: Iterable[EntryPoint] | None = None
) -> LogitsProcessor:
    """Make the processor of one request.

    Raises:
        ConfigError: no package has a processor of that name, or several do.
        Exception: whatever the factory raises.
    """
    entry = find_entry_point("logits processor", name, LOGITS_PROCESSORS, (), offered)
    assert entry is not None, "none is built in"
    processor: LogitsProcessor = entry.load()(arguments)
    return processor
