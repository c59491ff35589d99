"""The goals of pyllm against its peers, and their comparison with measurements. Measures nothing itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

# A line of the results' file: `peer`, `workload` and figures (`peers.py`).
Measurement = dict[str, Any]


class Row(NamedTuple):
    """`ours` on a workload, as a multiple of the best of `theirs`; for latencies less is better.

    `theirs` are beginnings of peers' names. Without `at_least` the row is only measured.
    """

    what: str
    workload: str
    figure: str
    ours: str
    theirs: tuple[str, ...]
    at_least: float | None
    aim: float

    @property
    def less_is_better(self) -> bool:
        return self.figure.endswith(("_ms", "_s")) and not self.figure.endswith("per_s")


PEERS = ("llama.cpp", "vllm")

ROWS = (
    Row("output tokens/s, concurrency 1", "streams-1", "output_tokens_per_s", "pyllm", PEERS, 1.4, 2.0),
    Row("output tokens/s, concurrency 8", "streams-8", "output_tokens_per_s", "pyllm", PEERS, 2.5, 4.0),
    Row("output tokens/s, concurrency 32", "streams-32", "output_tokens_per_s", "pyllm", PEERS, 3.0, 5.0),
    Row("TTFT p50, concurrency 1", "streams-1", "ttft_p50_ms", "pyllm", PEERS, 0.4, 0.25),
    Row("TTFT p50, concurrency 8", "streams-8", "ttft_p50_ms", "pyllm", PEERS, 0.4, 0.25),
    Row("TTFT p50, concurrency 32", "streams-32", "ttft_p50_ms", "pyllm", PEERS, 0.4, 0.25),
    Row("ITL p99, concurrency 32", "streams-32", "itl_p99_ms", "pyllm", PEERS, 0.7, 0.4),
    *(
        Row(
            f"requests/s, {shared} shared tokens, against no prefix cache",
            f"shared-{shared}",
            "requests_per_s",
            "pyllm-prefix-cache",
            ("pyllm-no-prefix-cache",),
            at_least,
            aim,
        )
        for shared, at_least, aim in ((2000, 3.0, 6.0), (80, None, 1.5), (341, None, 3.0))
    ),
    *(
        Row(f"{what}, conversations that return, {tiers}", "conversations-return", figure, ours, theirs, None, aim)
        for what, figure, aim in (("requests/s", "requests_per_s", 2.0), ("TTFT p50", "ttft_p50_ms", 0.5))
        for tiers, ours, theirs in (
            ("host memory against none", "pyllm-tier-host", ("pyllm-tier-none",)),
            ("disk against none", "pyllm-tier-disk", ("pyllm-tier-none",)),
            ("host memory against llama.cpp", "pyllm-tier-host", ("llama.cpp-tier",)),
        )
    ),
    Row(
        "output tokens/s, mixed lengths", "mixed", "output_tokens_per_s", "pyllm-bfloat16", ("transformers",), 4.0, 8.0
    ),
)


def rows_of_file(stem: str) -> Iterator[Row]:
    """The rows of one GGUF file, without speculation; the last one with it."""
    ours, theirs = f"pyllm-no-guesses@{stem}", ("llama.cpp",)
    for at_once, aim in {1: 1.6, 8: 3.5, 32: 4.0}.items():
        workload = f"natural-{at_once}"
        what = f"output tokens/s, concurrency {at_once}"
        yield Row(f"{stem}: {what}", workload, "output_tokens_per_s", ours, theirs, None, aim)
        yield Row(f"{stem}: {what}, with guesses", workload, "output_tokens_per_s", f"pyllm@{stem}", theirs, None, aim)
    for workload, aim in {"natural-8": 0.2, "prompt-128": 0.27, "prompt-1000": 0.25, "prompt-3500": 0.22}.items():
        yield Row(f"{stem}: TTFT p50, {workload}", workload, "ttft_p50_ms", ours, theirs, None, aim)
    yield Row(f"{stem}: ready", "natural-1", "ready_s", ours, theirs, None, 1.0)


def compare(measurements: Sequence[Measurement], rows: Iterable[Row] = ROWS) -> Iterator[dict[str, Any]]:
    """A line for each row; if a peer was measured more than once on a workload, the last time counts."""
    latest = {(line["peer"], line["workload"]): line for line in measurements}
    for row in rows:
        on_this = {peer: line[row.figure] for (peer, workload), line in latest.items() if workload == row.workload}
        file = row.ours.partition("@")[2]  # peers of another file are on another model
        theirs = {
            peer: value
            for peer, value in on_this.items()
            if peer.startswith(row.theirs) and peer.partition("@")[2] == file
        }
        answer: dict[str, Any] = {"row": row.what, "figure": row.figure, "at_least": row.at_least, "aim": row.aim}
        if row.ours in on_this and theirs:
            best = (min if row.less_is_better else max)(theirs, key=lambda peer: theirs[peer])
            ratio = on_this[row.ours] / theirs[best]
            answer |= {"pyllm": on_this[row.ours], "best_peer": best, "peer": theirs[best], "ratio": round(ratio, 3)}
            answer["verdict"] = _verdict(row, ratio)
        else:
            answer["verdict"] = "not measured"
        yield answer


def _verdict(row: Row, ratio: float) -> str:
    def reached(goal: float) -> bool:
        return ratio <= goal if row.less_is_better else ratio >= goal

    if reached(row.aim):
        return "aim reached"
    if row.at_least is None:
        return "measured"
    return "at least" if reached(row.at_least) else "too little"
