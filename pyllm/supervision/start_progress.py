"""The progress of a start, on a terminal: the pending stages, and a bar while a model is loaded. Knows no process."""

import asyncio
import os
import sys
import textwrap
from collections.abc import Callable
from typing import TextIO

from pyllm.supervision import json_log

_PAUSE = 0.2  # seconds between two updates
_MAX_CHARACTERS = 60  # of the description, so that it fits on one line
# The cursor returns to the start, so that a log line replaces this one.
_LINE = "starting: {desc}, {elapsed} \r"
# Terminals that cannot move the cursor: Emacs' shell, consoles of editors, CI.
_DUMB_TERMINALS = frozenset({"", "dumb", "unknown"})
_BAR = "{desc} {percentage:3.0f} % |{bar}| {elapsed} < {remaining} \r"


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which text can be replaced."""
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB_TERMINALS


async def show_progress(read: Callable[[], tuple[float, str]], stream: TextIO | None = None) -> None:
    """Show the progress of a start until cancelled; nothing if `stream` (stderr) cannot redraw, or has a JSON log.

    `read` returns the share of the model that is loaded, and a text on other pending work, which is shown before and
    after the loading of weights.
    """
    stream = stream or sys.stderr
    if not can_redraw(stream) or json_log.is_json():
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread
    loaded, waited_for = read()
    while True:
        with tqdm(desc=_one_line(waited_for), bar_format=_LINE, file=stream, leave=False) as line:
            while not 0 < loaded < 1:
                line.set_description_str(_one_line(waited_for))
                await asyncio.sleep(_PAUSE)
                loaded, waited_for = read()
        # A separate bar, so that its times cover only the loading.
        with tqdm(desc="loading weights", total=1.0, bar_format=_BAR, file=stream, leave=False) as bar:
            while 0 < loaded < 1:
                bar.n = loaded
                bar.refresh()
                await asyncio.sleep(_PAUSE)
                loaded, waited_for = read()


def _one_line(text: str) -> str:
    return textwrap.shorten(text, _MAX_CHARACTERS, placeholder=" ...")
