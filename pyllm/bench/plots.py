"""Curves of a result: in the terminal by plotext, or as a PNG by matplotlib, which the extra `pyllm[plot]` installs."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from pyllm.errors import ConfigError, PyllmError
from pyllm.machine.extras import is_installed, missing_extra

_WIDTH, _HEIGHT = 100, 16  # characters of one panel, at most
_POINTS = 200


class Panel(msgspec.Struct, frozen=True):
    """One curve."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]


def latency_plots(curves: Mapping[str, Sequence[float]]) -> list[Panel]:
    """Cumulative distribution of each latency, from values in seconds; latencies without values are left out."""
    shares = np.linspace(0, 100, _POINTS)
    values = {name: np.percentile(seconds, shares) * 1000 for name, seconds in curves.items() if len(seconds)}
    title = "{}: share of values up to"
    return [Panel(title.format(name), "ms", "%", x.tolist(), shares.tolist()) for name, x in values.items()]


def knee_plots(rates: Sequence[float], good: Sequence[float]) -> list[Panel]:
    """The share of good requests at each rate; rates rise."""
    return [Panel("Good requests by rate", "requests/s", "%", rates, [100 * share for share in good])] * bool(rates)


def show(panels: Sequence[Panel]) -> None:
    """Print the panels, one below the other; in colour on a terminal."""
    import plotext

    figure = plotext.figure
    columns = shutil.get_terminal_size((_WIDTH, _HEIGHT)).columns
    for panel in panels:
        figure.clear()
        figure.draw(figure.signal(panel.x, panel.y))
        figure.plot_size(min(columns, _WIDTH), _HEIGHT)
        figure.title(panel.title)
        figure.label(f"{panel.y_label} by {panel.x_label}")
        print(figure.build().string(colorless=not sys.stdout.isatty()))


def check_matplotlib() -> None:
    """Raise a ConfigError where matplotlib is not installed; call it before a load, not after."""
    if not is_installed("matplotlib"):
        raise ConfigError(f"--plot-file is a picture of matplotlib, and {missing_extra('plot', 'matplotlib')}")


def save_png(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels side by side.

    Raises:
        PyllmError: the file cannot be written, or its ending is no format of matplotlib.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * max(len(panels), 1), 4.0), layout="constrained")
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        axes.plot(panel.x, panel.y)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.grid(visible=True)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PyllmError(f"the plot cannot be saved as {path}: {error}") from error
