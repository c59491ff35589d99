"""Selectors of KV blocks by name: built-in ones, and those of other packages in the group `pyllm.kv_selectors`.

Loads a selector only to use it, so that the launcher can refuse a wrong name. Knows no way to choose blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyllm.config.engine_settings import SparseAttentionConfig
from pyllm.config.plugins import find_entry_point
from pyllm.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pyllm_kernels import Kernels

    from pyllm.workers.kv.kv_cache import KVCache
    from pyllm.workers.layers.rank_group import RankGroup
    from pyllm.workers.step.kv_selector import KVSelector

GROUP = "pyllm.kv_selectors"
# The built-in selectors, and the kind of key summaries that each uses, by its name in `pyllm_kernels`.
BUILT_IN = {"quest": "bounds", "mean": "mean"}


@dataclass(frozen=True, slots=True)
class SelectorInputs:
    """The argument of an entry point's factory, which returns a `KVSelector`.

    - `layers`: the indices in the model of this rank's sparse layers.
    - `max_rows`: the largest number of rows in a step.
    - `group`: the ranks that share the heads of these layers.
    """

    settings: SparseAttentionConfig
    kernels: "Kernels"
    kv_cache: "KVCache"
    layers: tuple[int, ...]
    max_rows: int
    group: "RankGroup"


def find_kv_selector(name: str, offered: "Iterable[EntryPoint] | None" = None) -> "EntryPoint | None":
    """The entry point of a selector, or None if it is built in. Imports nothing from it.

    Raises:
        ConfigError: no selector has this name, or several that differ.
    """
    return find_entry_point("sparse attention", name, GROUP, BUILT_IN, offered)


def load_kv_selector(inputs: SelectorInputs, offered: "Iterable[EntryPoint] | None" = None) -> "KVSelector":
    """The selector that the settings name.

    Raises:
        ConfigError: as `find_kv_selector`, or the factory fails.
    """
    name = inputs.settings.sparse_attention
    entry = find_kv_selector(name, offered)
    if entry is None:
        from pyllm_kernels import BlockBudget

        from pyllm.workers.sparse_attention.top_k_selector import TopKSelector

        settings = inputs.settings
        budget = BlockBudget(
            settings.sparse_attention_sink_blocks,
            settings.sparse_attention_top_k,
            settings.sparse_attention_recent_blocks,
        )
        return TopKSelector(
            inputs.kernels,
            inputs.kv_cache,
            inputs.layers,
            BUILT_IN[name],
            budget,
            max_rows=inputs.max_rows,
            group=inputs.group,
        )
    try:
        selector: KVSelector = entry.load()(inputs)
    except Exception as error:
        raise ConfigError(f"sparse attention {name!r} ({entry.value}) cannot be made: {error}") from error
    return selector
