"""A progress bar on a terminal while a model is loaded. Knows processes by the progress that they report."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

_PAUSE = 0.2  # seconds between two looks
_NEVER = 1e9  # seconds until the bar would draw itself, be there progress or not


class Loading(Protocol):
    """A `SupervisedProcess`, or a fake."""

    @property
    def progress(self) -> float:
        """The share of the model that is loaded."""


async def show_progress(processes: Sequence[Loading], stream: TextIO | None = None) -> None:
    """Draw a bar until the model is loaded, or this is cancelled; nothing where `stream` (stderr) is no terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # No thread of its own.
    # The cursor goes back, so that a line of the log replaces the bar.
    form = "{desc} {percentage:3.0f} % |{bar}| {elapsed} < {remaining} \r"
    with tqdm(total=1.0, desc="loading weights", bar_format=form, file=stream, leave=False, delay=_NEVER) as bar:
        while (progress := max(process.progress for process in processes)) < 1:
            if progress > bar.n:
                bar.n = progress
                bar.refresh()
            await asyncio.sleep(_PAUSE)
