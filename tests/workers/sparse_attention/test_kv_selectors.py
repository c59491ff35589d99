"""Selectors by name: our own, and those that other packages offer, around each step and each attention."""

import re
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pyllm_kernels import AttentionLayer, AttentionMetadata
from torch import Tensor

from pyllm.errors import ConfigError
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.sparse_attention.kv_selectors import (
    BUILT_IN,
    GROUP,
    SelectorInputs,
    find_kv_selector,
    load_kv_selector,
)
from pyllm.workers.step.attention_batch import Ints
from pyllm.workers.step.kv_selector import KVSelector
from pyllm.workers.step.step_rows import StepRows
from tests.core.fake_distribution import install
from tests.plans import Planner, Row
from tests.tiny_model import write_tiny_model
from tests.workers.engine import greedy, loaded_runner, run

DOCUMENT = Path(__file__).parents[3] / "docs" / "sparse-attention.md"
HERE = "tests.workers.sparse_attention.test_kv_selectors"


@dataclass
class Diary:
    """A selector that chooses nothing and notes its calls."""

    layers: tuple[int, ...] = ()
    in_graphs: bool = False
    calls: list[object] = field(default_factory=list)

    def blocks_written(self, blocks: Ints) -> None:
        self.calls.append(("written", len(blocks)))

    def execute_begin(self, rows: StepRows) -> None:
        self.calls.append(("begin", rows.sequence_lengths.tolist(), rows.is_sparse.tolist()))

    def attention_begin(
        self, layer: int, query: Tensor, metadata: AttentionMetadata, attention: AttentionLayer
    ) -> AttentionMetadata:
        self.calls.append((layer, tuple(query.shape), metadata.sequence_lengths.tolist(), round(attention.scale, 3)))
        return metadata

    def attention_finished(self, layer: int, output: Tensor) -> None:
        self.calls.append((layer, tuple(output.shape)))

    def execute_finished(self) -> None:
        self.calls.append("finished")


def example_of_the_documents(inputs: SelectorInputs) -> KVSelector:
    (source,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    selector: KVSelector = names["FirstAndLast"](inputs)
    return selector


def make_diary(inputs: SelectorInputs) -> Diary:
    return Diary(inputs.layers)


def offer_selector(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, function: str) -> None:
    """Install a package that offers a function of this module."""
    install(folder, GROUP, {name: f"{HERE}:{function}"})
    monkeypatch.syspath_prepend(folder)


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_our_own_need_no_package() -> None:
    assert [find_kv_selector(name, [entry(name, "math:sqrt")]) for name in BUILT_IN] == [None, None]
    with pytest.raises(
        ConfigError, match=f"no sparse attention 'h2o'; there are quest, mean, theirs; .* of group {GROUP}"
    ):
        find_kv_selector("h2o", [entry("theirs", "math:sqrt")])


def test_one_of_another_package_is_called_around_each_step_and_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_selector(tmp_path, monkeypatch, "diary", "make_diary")
    model = write_tiny_model(tmp_path / "model", layers=3)
    runner = loaded_runner(model, sparse_attention="diary", sparse_attention_dense_layers=1)
    diary, planner = runner._selector, Planner()
    assert isinstance(diary, Diary)
    assert diary.layers == (1, 2)
    assert runner._forward is not None
    assert runner._forward._step_graph is None, "a graph would not call it"
    planner.start(0, prompt_length=20)
    run(runner, planner.step(Row(0, list(range(22)))))
    expected: list[object] = [("written", 2), ("begin", [20, 21, 22], [0, 1, 1])]
    for layer in range(3):
        expected += [(layer, (22, 6, 16), [20, 21, 22], 0.25), (layer, (22, 6, 16))]
    assert diary.calls == [*expected, "finished"]


def test_the_example_of_the_documents_reads_the_first_block_and_the_last_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ours does where it chooses none."""
    offer_selector(tmp_path, monkeypatch, "theirs", "example_of_the_documents")
    model = write_tiny_model(tmp_path / "model", layers=3)
    prompt = [(7 * position) % 256 for position in range(60)]
    ours: dict[str, Any] = {"sparse_attention_top_k": 0, "sparse_attention_sink_blocks": 1}
    settings: list[dict[str, Any]] = [{"sparse_attention": "theirs"}, {"sparse_attention": "mean"} | ours, {}]
    theirs, none_chosen, dense = (
        greedy(loaded_runner(model, block_size=4, **options), Planner(block_size=4), 0, prompt, 40)
        for options in settings
    )
    assert theirs == none_chosen != dense


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:make", "cannot be made: No module named 'no_such_module'"),
        ("math:sqrt", "cannot be made: must be real number"),
    ],
)
def test_what_makes_no_selector_is_a_configuration_error(tmp_path: Path, value: str, text: str) -> None:
    runner = loaded_runner(write_tiny_model(tmp_path / "model", layers=3), sparse_attention="quest")
    engine = runner._engine
    settings = type(engine.sparse)(sparse_attention="odd")
    inputs = SelectorInputs(settings, runner._kernels, runner._memory.cache, (2,), 8, RankGroup())
    with pytest.raises(ConfigError, match=f"sparse attention 'odd' .* {text}"):
        load_kv_selector(inputs, [entry("odd", value)])
