"""A progress bar on a terminal while a model is loaded. Knows no process."""

import asyncio
import sys
from collections.abc import Callable
from typing import TextIO

_PAUSE = 0.2  # seconds between two looks
_NEVER = 1e9  # seconds until the bar would draw itself, be there progress or not


async def show_progress(read: Callable[[], float], stream: TextIO | None = None) -> None:
    """Draw a bar until `read` gives 1, or this is cancelled; nothing where `stream` (stderr) is no terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # No thread of its own.
    # The cursor goes back, so that a line of the log replaces the bar.
    bar_format = "{desc} {percentage:3.0f} % |{bar}| {elapsed} < {remaining} \r"
    with tqdm(total=1.0, desc="loading weights", bar_format=bar_format, file=stream, leave=False, delay=_NEVER) as bar:
        while (progress := read()) < 1:
            if progress > bar.n:
                bar.n = progress
                bar.delay = 0.0  # Once it is drawn it is also wiped out at its end.
                bar.refresh()
            await asyncio.sleep(_PAUSE)
