"""Loads an adapter into a runner as a core does."""

import msgspec

from pyllm.checkpoint.types import LoraAdapter
from pyllm.workers.model_runner import ModelRunner


def load_adapter(runner: ModelRunner, number: int, adapter: LoraAdapter) -> None:
    """Load all of an adapter, and check that each of its matrices has a layer."""
    found = runner.call("load_adapter", (number, adapter.files, msgspec.msgpack.encode(adapter.matrices)))
    assert sorted(found) == sorted(each.entry.name for each in adapter.matrices)
