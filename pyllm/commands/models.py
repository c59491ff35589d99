"""`pyllm models`: lists the models on this machine, and whether each runs and fits. Loads no weights.

With `--available` it lists the short names of models that can be downloaded.
"""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from pyllm.checkpoint.hub import size_text
from pyllm.checkpoint.hub_cache import CachedModel, cached_models
from pyllm.checkpoint.model_name import short_names
from pyllm.checkpoint.reader import embedded_model, read_checkpoint
from pyllm.errors import ConfigError, PyllmError
from pyllm.families.config import UnsupportedFeatureError
from pyllm.families.registry import UnknownArchitectureError
from pyllm.launch.resolve import cpu_memory_needed
from pyllm.machine.memory import host_memory

_LONGEST_REASON = 72
_SHORT_COMMIT = 7
_WORDS = {True: "yes", False: "no", None: "?"}


class Row(msgspec.Struct, frozen=True):
    """A model as it is listed. `reason` says why pyllm cannot or may not run it; None means not known."""

    name: str
    format: str
    bytes: int
    revision: str
    path: str
    runs: bool | None
    fits: bool | None
    reason: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    text = "list the short names of models that `pyllm pull` downloads, with sizes, and which of them fit here"
    parser.add_argument("--available", action="store_true", help=text)


class AvailableRow(msgspec.Struct, frozen=True):
    """A short name as it is listed. `fits` says whether its weights fit into free memory; None means not known."""

    name: str
    model: str
    bytes: int
    fits: bool | None
    is_here: bool


def run(options: argparse.Namespace) -> int:
    """Print the embedded model and those in the hub's cache, or the short names."""
    if options.available:
        return _print_available(options.json)
    rows = [_row(model) for model in (*_embedded(), *cached_models())]
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return 0
    print_table([("NAME", "FORMAT", "SIZE", "REVISION", "RUNS", "FITS", ""), *map(_cells, rows)])
    if not rows:
        print("there is no model here; `pyllm pull owner/repo` downloads one", file=sys.stderr)
    return 0


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells, the first of which are the headings, in columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_available(as_json: bool) -> int:
    here = {model.name for model in cached_models()}
    available = min((memory.available for memory in host_memory()), default=None)
    rows = [
        AvailableRow(
            short.name,
            short.model,
            short.num_bytes,
            None if available is None else short.num_bytes <= available,
            short.model in here,
        )
        for short in dict.fromkeys(short_names().values())
    ]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return 0
    cells = [
        (row.name, size_text(row.bytes), _WORDS[row.fits], "yes" if row.is_here else "", row.model) for row in rows
    ]
    print_table([("NAME", "SIZE", "FITS", "HERE", "MODEL"), *cells])
    return 0


def _embedded() -> list[CachedModel]:
    try:
        path = embedded_model()
    except ConfigError:
        return []
    return [CachedModel("(embedded)", "GGUF Q4_1", path.stat().st_size, "", str(path))]


def _row(model: CachedModel) -> Row:
    runs: bool | None = True
    reason, needed = "", model.num_bytes
    try:
        needed = cpu_memory_needed(read_checkpoint(model.path))
    except PyllmError as error:
        is_of_others = isinstance(error, UnknownArchitectureError | UnsupportedFeatureError)
        if is_of_others and not model.format.startswith("GGUF"):
            runs, reason = None, "transformers is asked when it is served"
        else:
            runs, reason = False, str(error).replace(f"{model.path}/", "").replace(model.path, model.name)
    available = min((memory.available for memory in host_memory()), default=None)
    fits = None if available is None else needed <= available
    return Row(model.name, model.format, model.num_bytes, model.revision, model.path, runs, fits, reason)


def _cells(row: Row) -> tuple[str, ...]:
    runs, fits = _WORDS[row.runs], _WORDS[row.fits]
    reason = row.reason if len(row.reason) <= _LONGEST_REASON else f"{row.reason[: _LONGEST_REASON - 3]}..."
    return row.name, row.format, size_text(row.bytes), row.revision[:_SHORT_COMMIT], runs, fits, reason
