"""Plots the results of `sparse_attention.py`: `python -m benchmarks.engine.sparse_plot SVG RESULTS.jsonl ...`.

Recall, perplexity and speed over the number of chosen blocks, a line for each model and selector.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.record import Record

PANELS = {
    "sparse_attention.recall": "share of the attention that is read",
    "sparse_attention.perplexity": "perplexity, of dense attention's",
    "sparse_attention.tokens_per_s": "tokens/s, of dense attention's",
}
STYLES = {"quest": "o-", "mean": "s--"}


def draw(records: list[Record], to: Path) -> None:
    """Draw the plot; the same records give the same file."""
    with mpl.rc_context({"svg.hashsalt": "pyllm", "font.size": 8}):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        first, *others = figure.subplots(1, 3)
        for axes, (name, title) in zip((first, *others), PANELS.items(), strict=True):
            _draw_panel(axes, [record for record in records if record["name"] == name])
            axes.set(xscale="log", xlabel="blocks of 16 tokens that are chosen", title=title)
            axes.set_xticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"], minor=False)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.savefig(to, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, records: list[Record]) -> None:
    models = list(dict.fromkeys(record["model"] for record in records))
    for number, model in enumerate(models):
        for kind, style in STYLES.items():
            chosen = [record for record in records if record["model"] == model and record["kind"] == kind]
            if not chosen:
                continue
            context = chosen[0]["context"]
            values = [record["value"] / record.get("dense", 1.0) for record in chosen]
            label = f"{model.partition('.')[0]}, {kind}, {context:,} tokens"
            axes.plot([record["top_k"] for record in chosen], values, style, color=f"C{number}", label=label)


def main() -> None:
    """Read the files and write the picture."""
    to, *files = sys.argv[1:]
    draw([json.loads(line) for file in files for line in Path(file).read_text().splitlines()], Path(to))


if __name__ == "__main__":
    main()
