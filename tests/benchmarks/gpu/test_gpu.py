"""What `python -m benchmarks.gpu` says: its checks, its arithmetic, and its answer where there is no card."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from pyllm_kernels import AttentionLayer, AttentionMetadata, AttentionShape, select
from pyllm_kernels.ops.paged_attention import paged_attention
from torch import Tensor

from benchmarks.gpu import all_reduce, checks, compile_kernels, figures, graphs, llama, served, swaps, worker_steps
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.figures import Bench, Yardstick
from benchmarks.gpu.offline_driver import Report
from benchmarks.gpu.offline_launches import Target
from benchmarks.gpu.part_processes import RAISED, run_checks, run_parts
from benchmarks.gpu.parts import PARTS, Setting, emit_parts, figure_parts, precisions
from benchmarks.gpu.timing import copy_bandwidth, copy_size, matrix_rate
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.workers.layers.rank_group import RankGroup
from tests.tiny_model import write_tiny_model

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]


class FakeTimer:
    """Runs what is to be timed once, and says what it was told to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.runs = 0

    def __call__(self, function: Callable[[], object]) -> float:
        function()
        self.runs += 1
        return self.seconds


def bench(seconds: float) -> Bench:
    """A card that copies 1 TB and multiplies 100 T numbers in a second."""
    return Bench(select("triton", CPU), CPU, torch.float16, FakeTimer(seconds), Yardstick(1e12, 100e12))


@pytest.mark.full
def test_every_kernel_passes_its_check(tmp_path: Path) -> None:
    settings = map(Setting("cpu", tmp_path, small=True).of, (torch.float32, torch.float16))
    results = [result for each in settings for result in checks.judge(each, checks.checks(each, float8=True))]
    assert [result for result in results if not result.ok] == []
    assert len(results) > 15


def test_a_kernel_that_differs_or_raises_is_reported() -> None:
    def differs(setting: checks.Setting) -> checks.Pairs:
        return [(torch.ones(2), torch.tensor([1.0, 1.5])), (torch.tensor([float("nan")]), torch.zeros(1))]

    def fails(setting: checks.Setting) -> checks.Pairs:
        raise RuntimeError("out of registers")

    setting = checks.Setting(select("triton", CPU), select("reference", CPU), CPU, torch.float32, small=True)
    first, second = checks.judge(setting, {"differs": (differs, 0.6), "fails": (fails, None)})
    assert (first.ok, first.error) == (False, float("inf"))
    assert (second.ok, second.error) == (False, "RuntimeError: out of registers")


def test_the_loss_of_a_tenth_of_a_long_context_is_found() -> None:
    """All numbers of such a row are as small as the average of so many values."""

    def forgetful(
        query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, layer: AttentionLayer
    ) -> Tensor:
        lengths = metadata.sequence_lengths
        metadata = replace(metadata, sequence_lengths=lengths - 2000 * (lengths > 20_000).int())
        return select("reference", CPU)[paged_attention](query, key_cache, value_cache, metadata, layer)

    kernels = select("reference", CPU).replaced(paged_attention, forgetful)
    setting = checks.Setting(kernels, select("reference", CPU), CPU, torch.bfloat16, small=False)
    (result,) = checks.judge(setting, {"attention": checks.checks(setting, False)["attention"]})
    assert not result.ok


def test_integers_are_equal_or_wrong() -> None:
    def differs(setting: checks.Setting) -> checks.Pairs:
        return [(torch.tensor([100_000, 7]), torch.tensor([100_001, 7]))]

    setting = checks.Setting(select("triton", CPU), select("reference", CPU), CPU, torch.float32, small=True)
    (result,) = checks.judge(setting, {"differs": (differs, 0.5)})
    assert not result.ok


def test_bytes_and_operations_are_counted_as_the_table_counts_them() -> None:
    shape = AttentionShape(heads=32, kv_heads=8, head_dim=128, dtype="bfloat16")
    assert figures.decode_bytes(shape, 16, 1024, 2) == 4096 * 16 * 1024
    assert figures.prefill_operations(shape, 8192) == 2 * 32 * 128 * 8192**2


def test_decode_attention_is_a_share_of_the_bandwidth() -> None:
    cases = {"2x256": (2, 256, 0.75), "1x16": (1, 16, None)}
    num_bytes = 4096 * 2 * 256
    first, map_of_first, second, map_of_second = figures.decode_attention(bench(num_bytes / 0.8e12), cases)
    assert first == {
        "name": "gpu.decode_attention",
        "case": "2x256",
        "value": round(num_bytes / 0.8e6, 2),
        "unit": "us",
        "share": 0.8,
        "goal": 0.75,
        "met": True,
    }
    assert "goal" not in second
    for tasks, case in ((map_of_first, "2x256"), (map_of_second, "1x16")):
        assert (tasks["name"], tasks["case"]) == ("gpu.attention_tasks", case)
    slow, *_ = figures.decode_attention(bench(num_bytes / 0.7e12), cases)
    assert slow["met"] is False


def test_prefill_attention_is_a_rate() -> None:
    cases = {"paged": (48, 16, False, 1e9), "dense": (48, 128, True, 1e15)}
    operations = 2 * 32 * 128 * 48**2
    first, second = figures.prefill_attention(bench(operations / 50e12), cases)
    (torchs,) = figures.torch_attention(bench(operations / 50e12), 48)
    assert (first["value"], first["share"], first["goal"], first["met"]) == (50.0, 0.5, 0.001, True)
    assert second["met"] is False
    assert (torchs["name"], torchs["case"]) == ("gpu.torch_attention", "48 dense")


def test_the_other_figures_run() -> None:
    small = bench(1e-3)
    assert len(list(figures.small_ops(small, num_tokens=2, hidden=64))) == 3
    few, many = figures.expert_figures(small, (4, 2, 64, 32), (3, 65))
    assert (few["unit"], many["unit"]) == ("us", "TFLOP/s")
    sampled = list(figures.sampling(small, rows=2, vocabulary=300))
    assert [figure["met"] for figure in sampled] == [False] * 4
    assert [figure["value"] for figure in figures.logits_ops(small, rows=2, vocabulary=300, edits=7)] == [1.0, 1.0]
    assert len(list(figures.decode_attention_float8(small, {"1x20": (1, 20, None)}))) == 1


class Doubling(RankGroup):
    """A rank of two that have the same numbers."""

    def __init__(self, by: float) -> None:
        super().__init__(0, 2)
        self._by = by

    def sum(self, part: Tensor) -> Tensor:
        return part * self._by


@pytest.mark.parametrize(("by", "ok"), [(2, True), (2.5, False)])
def test_an_all_reduce_is_timed_and_checked_by_size(by: float, ok: bool) -> None:
    groups = {"in_rank_order": Doubling(2), "one_shot": Doubling(by)}
    first, second = all_reduce.by_size(groups, FakeTimer(5e-6), CPU, (16, 64))
    name = {"name": "gpu.all_reduce", "ranks": 2, "in_rank_order": 5.0, "one_shot": 5.0, "ok": ok}
    assert first == name | {"bytes": 16}
    assert second["bytes"] == 64
    (alone,) = all_reduce.by_size({"in_rank_order": Doubling(2)}, FakeTimer(1e-6), CPU, (16,))
    assert "ok" not in alone


def test_one_card_reduces_nothing(tmp_path: Path) -> None:
    (line,) = PARTS["all-reduce"](Setting("cpu", tmp_path, small=True))
    assert line == {"name": "gpu.all_reduce", "value": "not measured", "why": "it takes 2 cards, and torch sees 0"}


def test_the_yardstick_counts_both_ways_of_a_copy() -> None:
    assert copy_bandwidth(FakeTimer(2.0), CPU, 1000) == 1000
    assert matrix_rate(FakeTimer(0.5), CPU, torch.float32, 10) == 4000


def test_the_yardstick_copies_what_there_is_room_for() -> None:
    assert copy_size(80 << 30) == 2 << 30
    assert copy_size(4 << 30) == 1 << 30


def test_what_a_figure_raises_stands_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    def halves() -> Iterator[figures.Figure]:
        yield {"name": "gpu.first", "value": 1.0}
        raise RuntimeError("an illegal memory access was encountered")

    def whole() -> Iterator[figures.Figure]:
        yield {"name": "gpu.second", "value": 2.0}

    assert emit_parts([("whole", whole)])
    assert not emit_parts([("halves", halves), ("whole", whole)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"name": "gpu.second", "value": 2.0},
        {"name": "gpu.first", "value": 1.0},
        {"name": "gpu.halves", "error": "RuntimeError: an illegal memory access was encountered"},
        {"name": "gpu.second", "value": 2.0},
    ]


def test_every_figure_is_a_part_of_its_own() -> None:
    names = [name for name, _ in figure_parts(bench(1.0), float8=True)]
    assert len(names) == len(set(names)) == 2 * len(figures.DECODES) + len(figures.PREFILLS) + 8
    assert len(list(figure_parts(bench(1.0), float8=False))) == len(names) - len(figures.DECODES)


def test_tokens_are_the_same_with_graphs_and_without(tmp_path: Path) -> None:
    """On a CPU, by the graphs of a CPU."""
    setting = checks.Setting(select("triton", CPU), select("reference", CPU), CPU, torch.float32, small=True)
    ((with_graphs, without),) = graphs.same_tokens(setting, write_tiny_model(tmp_path))
    assert len(with_graphs) == sum(graphs.LENGTHS)
    assert torch.equal(with_graphs, without)


def test_swaps_beside_steps_leave_the_same_bytes() -> None:
    setting = checks.Setting(select("triton", CPU), select("reference", CPU), CPU, torch.float32, small=True)
    pairs = swaps.same_bytes(setting)
    assert all(torch.equal(actual, expected) for actual, expected in pairs)
    changed = [not torch.equal(one, other) for (one, _), (other, _) in pairwise(pairs[:-1])]
    assert sum(changed) > len(changed) // 2


def test_a_step_of_the_model_is_one_pass() -> None:
    shape = llama.spec(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
    )
    tiny = bench(0.004)
    (figure,) = llama.steps(tiny, shape, {"batch 2": (2, 20, 5.0)})
    assert (figure["value"], figure["met"]) == (4.0, True)


@pytest.mark.parametrize(
    ("capability", "dtypes", "float8"),
    [
        ((9, 0), [torch.bfloat16, torch.float16, torch.float32], True),
        ((8, 0), [torch.bfloat16, torch.float16, torch.float32], False),
        ((7, 5), [torch.float16, torch.float32], False),
        ((7, 0), [], False),
    ],
)
def test_a_card_is_checked_in_what_it_has(capability: tuple[int, int], dtypes: list[torch.dtype], float8: bool) -> None:
    assert precisions("a card", capability) == (dtypes, float8)


def test_parts_end_for_themselves() -> None:
    programs = {
        "well": "pass",
        "fails": "import sys; sys.exit('an illegal memory access')",
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    }
    times = iter([0.0, 0.0, 1.0, 1.0, 3.0, 3.0, 3.5, 4.0, 4.0])  # Each part begins and ends.
    lines: list[dict[str, object]] = []
    outcome = run_parts(
        list(programs),
        lambda part: [sys.executable, "-c", programs[part]],
        seconds=100.0,
        clock=lambda: next(times),
        emit=lines.append,
    )
    assert outcome == (["fails", "killed"], [])
    assert [(line["part"], line["ok"], line["seconds"]) for line in lines] == [
        ("well", True, 1.0),
        ("fails", False, 2.0),
        ("killed", False, 0.5),
    ]
    assert "error" not in lines[0]
    assert lines[1]["error"] == "exit code 1: an illegal memory access"
    assert lines[2]["error"] == "killed by SIGKILL"


def test_a_part_that_does_not_end_is_ended_and_the_next_is_not_begun() -> None:
    times = iter([0.0, 10.0, 10.5, 10.5, 10.5])
    lines: list[dict[str, object]] = []
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    outcome = run_parts(
        ["endless", "next"],
        lambda part: command,
        seconds=10.2,
        clock=lambda: next(times),
        emit=lines.append,
        least_seconds=0.1,
    )
    assert outcome == (["endless"], ["next"])
    assert lines[0]["error"] == "ended after 0 s"
    assert lines[1]["error"] == "not reached: 0 of 10 s were left; run it in a call of its own"


def test_checks_go_on_behind_one_that_raises_or_ends_its_process() -> None:
    program = f"""
import json, os, sys
for name in sys.argv[1:]:
    if name == "dies":
        os.abort()
    if name == "leaves":
        sys.exit(0)
    print("a driver's warning", 7, sep="\\n")
    print(json.dumps({{"name": "gpu.check." + name, "ok": name != "raises"}}), flush=True)
    if name == "raises":
        sys.exit({RAISED})
"""
    names = ["a", "raises", "b", "dies", "leaves", "c"]
    lines = list(run_checks(names, lambda left: [sys.executable, "-c", program, *left]))
    assert [line["text"] for line in lines if line["name"] == "gpu.text"] == ["a driver's warning", "7"] * 4
    lines = [line for line in lines if line["name"] != "gpu.text"]
    assert [line["name"].removeprefix("gpu.check.") for line in lines] == names
    assert [line["ok"] for line in lines] == [True, False, True, False, False, True]
    assert lines[3]["error"] == "its process ended with -6"
    assert lines[4]["error"] == "its process ended with 0"


def test_a_process_that_can_do_no_check_is_not_started_for_ever() -> None:
    lines = list(run_checks(["a", "b"], lambda left: [sys.executable, "-c", f"raise SystemExit({RAISED})"]))
    assert [line["error"] for line in lines] == [f"its process ended with {RAISED}"] * 2


def test_steps_of_every_kind_are_begun_and_traced(tmp_path: Path) -> None:
    runner = worker_steps.loaded_runner(write_tiny_model(tmp_path / "model"), CPU, "float32")
    lines = list(worker_steps.steps_without_waiting(runner, on_card=False))
    assert [line for line in lines if not line["ok"]] == []
    assert {line["kind"] for line in lines} == {"decode", "mixed", "top-p", "penalties", "logprobs", "swaps"}
    traces = list(worker_steps.traces(runner, tmp_path, on_card=False))
    assert [line["file"] for line in traces] == ["batch-1.json", "mixed.json"]
    assert all("begin_us" in line for line in traces)
    assert json.loads((tmp_path / "mixed.json").read_text())["traceEvents"]


def test_tokens_are_judged_by_the_logits_of_transformers(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, heads=4, kv_heads=2)
    (line,) = served.tokens_beside_transformers(model, "cpu", "float32", "uni")
    assert (line["ok"], line["equal"]) == (True, line["of"])
    wrong = served.beside_transformers(model, "cpu", "float32", [[5] * served.ANSWER for _ in served.PROMPTS])
    assert not wrong["ok"]
    short = served.beside_transformers(model, "cpu", "float32", [[] for _ in served.PROMPTS])
    assert not short["ok"]


def test_the_worker_of_a_server_is_found_below_it() -> None:
    """Not that of another, nor another process of the server."""
    program = """
import subprocess, sys
names = ("pyllm::core-0", "pyllm::worker-0-0")
children = [subprocess.Popen([name, "-c", "input()"], executable=sys.executable, stdin=0) for name in names]
print(*(child.pid for child in children), flush=True)
for child in children:
    child.wait()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        core, worker = map(int, server.stdout.readline().split())
        assert served.worker_below(server.pid) == worker
        assert served.worker_below(core) is None
        server.stdin.close()


@pytest.mark.parametrize(
    ("kernel", "dtype", "spilled", "fits", "refused"),
    [
        ("_prefill_kernel", torch.bfloat16, 0, True, False),
        ("_prefill_kernel", torch.bfloat16, 4, True, True),
        ("_decode_split_kernel", torch.float16, 4, True, True),
        ("_prefill_kernel", torch.float32, 4, True, False),
        ("_sample_kernel", torch.bfloat16, 4, True, False),
        ("_sample_kernel", torch.float32, 0, False, True),
    ],
)
def test_a_tile_of_two_byte_floats_may_not_spill(
    kernel: str, dtype: torch.dtype, spilled: int, fits: bool, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(kernel, 4, 255, 0, spilled, 0, 1024, fits, 0, 1, 0, 0, (), ())
    assert compile_kernels.print_report(Target(90, dtype, False), "a case", report) == refused
    assert json.loads(capsys.readouterr().out)["ok"] != refused


def test_what_there_is_no_time_for_is_named_with_the_call_that_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(PARTS)[-1] == "tune", "what a card is to show comes before what may be better"
    folder = tmp_path / "a folder"
    assert main(["--device", "cpu", "--seconds", "0", "--folder", str(folder), "load", "tune"]) == 1
    *_, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    call = f"python -m benchmarks.gpu --folder '{folder}' load tune"
    expected = {"name": "gpu.summary", "ok": False, "failed": [], "not_reached": ["load", "tune"], "next": call}
    assert summary == expected


def test_rows_of_random_weights_differ_and_are_few_numbers() -> None:
    weights = llama.RandomWeights()
    rows = weights.rows("embedding", (100_000, 64))
    numbers = rows.numbers()
    assert numbers.shape == (100_000, 64)
    assert len(np.unique(numbers[:, 0])) > 99_000
    assert len(np.unique(rows.addresses)) == 100_000
    assert abs(numbers.std().item() * 8 - 1) < 0.01
    assert abs(numbers.mean().item()) < 1e-3
    part = weights.rows("other", (100_000, 4096), slice(5, 7), slice(0, 32)).numbers()
    assert part.shape == (2, 32)
    assert abs(part).max() * 64 < 6


def test_without_a_card_it_says_so_and_fails() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=ROOT,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert "no CUDA card is visible to torch here, so nothing was checked or measured" in process.stderr


def test_a_random_model_with_many_tokens_is_one_that_servers_take(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path / "model", vocab_size=4096))
    assert checkpoint.spec.vocab_size == 4096
