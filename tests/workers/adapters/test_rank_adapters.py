"""Adapters of one rank: which rows get which, what stays of one after another, and what is refused."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyllm_kernels.tensors import Array

from pyllm.checkpoint.adapters.adapter_files import read_lora
from pyllm.errors import ConfigError, ProtocolError
from pyllm.workers.model_runner import ModelRunner
from tests.checkpoint.adapters.lora_folder import write_lora
from tests.families.test_oracle import Sequences
from tests.plans import Row
from tests.tiny_model import write_tiny_model
from tests.workers.adapters.loading import load_adapter
from tests.workers.engine import loaded_runner

MODULES = {
    "model.layers.0.self_attn.q_proj": (96, 48),
    "model.layers.0.self_attn.v_proj": (48, 48),
    "model.layers.1.mlp.down_proj": (48, 96),
}
PROMPT = list(range(40, 60))


class Adapted:
    """A tiny model with room for two adapters on the device, of rank 8 at most."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        settings = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
        self.runner = loaded_runner(
            write_tiny_model(folder / "model"), num_blocks=256, max_model_len=128, **(settings | options)
        )
        self.sequences = Sequences(self.runner)
        self._numbers = 0

    def load(self, rank: int = 4, scale: float = 0.3, modules: dict[str, tuple[int, int]] = MODULES) -> int:
        self._numbers += 1
        folder = write_lora(self.folder / str(self._numbers), modules, rank=rank, seed=self._numbers, scale=scale)
        load_adapter(self.runner, self._numbers, read_lora(folder, self.runner._spec))
        return self._numbers

    def logits(self, *adapters: int) -> list[Array]:
        """The logits of the prompt with these adapters, each -1 or a slot of the device, in one step."""
        for slot, adapter in enumerate(adapters):
            self.sequences.planner.start(slot, adapter=adapter)
        found = self.sequences.logits(*(Row(slot, PROMPT) for slot in range(len(adapters))))
        return [found[slot] for slot in range(len(adapters))]


@pytest.fixture
def adapted(tmp_path: Path) -> Adapted:
    return Adapted(tmp_path)


def test_each_row_has_its_own_adapter_bit_for_bit_as_alone(adapted: Adapted) -> None:
    for place in (0, 1):
        adapted.sequences.planner.assign(place, adapted.load())
    together = adapted.logits(1, -1, 0, 1)
    for logits, adapter in zip(together, (1, -1, 0, 1), strict=True):
        np.testing.assert_array_equal(adapted.logits(adapter)[0], logits)
    assert np.abs(together[0] - together[1]).max() > 0.1
    assert np.abs(together[0] - together[2]).max() > 0.1


def test_an_adapter_leaves_nothing_behind_in_its_slot_of_the_device(adapted: Adapted) -> None:
    plain = adapted.logits(-1)[0]
    adapted.sequences.planner.assign(0, adapted.load(rank=8))
    adapted.logits(0)
    few = {"model.layers.1.mlp.down_proj": (48, 96)}
    small = adapted.load(rank=2, modules=few)
    adapted.sequences.planner.assign(0, small)
    adapted.sequences.planner.assign(1, small)
    first, second = adapted.logits(0, 1)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(adapted.logits(-1)[0], plain)


def test_a_fork_keeps_the_adapter(adapted: Adapted) -> None:
    adapted.sequences.planner.assign(1, adapted.load())
    whole = adapted.logits(1)[0]
    adapted.sequences.planner.start(0, adapter=1)
    adapted.sequences.logits(Row(0, PROMPT[:16]))  # a whole block, which both share
    adapted.sequences.planner.fork(0, 3)
    rest = adapted.sequences.logits(Row(3, PROMPT[16:]))[3]
    np.testing.assert_array_equal(rest, whole[16:])


def test_a_plan_with_an_adapter_that_is_not_on_the_host_is_refused(adapted: Adapted) -> None:
    number = adapted.load()
    adapted.runner.call("unload_adapter", (number,))
    adapted.sequences.planner.assign(0, number)
    with pytest.raises(ProtocolError, match="adapter 1 is not on the host"):
        adapted.logits(0)


def test_numbers_that_are_not_finite_name_their_tensor(adapted: Adapted) -> None:
    with pytest.raises(ConfigError, match=r"lora_.*has a NaN or an infinity"):
        adapted.load(scale=np.inf)


def test_matrices_of_other_layers_are_not_taken(adapted: Adapted) -> None:
    folder = write_lora(adapted.folder / "one", MODULES)
    adapter = read_lora(folder, adapted.runner._spec)
    renamed = [
        msgspec.structs.replace(each, entry=msgspec.structs.replace(each.entry, name=f"layers.9.{each.entry.name}"))
        for each in adapter.matrices
    ]
    assert adapted.runner.call("load_adapter", (1, adapter.files, msgspec.msgpack.encode(renamed))) == []


def test_runners_without_adapters_have_no_such_calls(tmp_path: Path) -> None:
    runner: ModelRunner = loaded_runner(write_tiny_model(tmp_path), max_model_len=128)
    with pytest.raises(ProtocolError, match="no method 'load_adapter'"):
        runner.call("load_adapter", (1, (), b""))
