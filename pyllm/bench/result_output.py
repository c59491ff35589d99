"""Results as text (a table in vLLM's form, JSON or CSV) and as files. Measures nothing."""

import csv
import datetime
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyllm.bench.answer_reading import RequestRecord
from pyllm.bench.bench_defaults import METRICS
from pyllm.errors import ConfigError, PyllmError

Result = dict[str, Any]

_WIDTH = 56
_VALUE = 14
_COUNTS = {
    "completed": "Successful requests:",
    "failed": "Failed requests:",
    "unfinished": "Unfinished requests:",
    "max_concurrency": "Maximum request concurrency:",
    "request_rate": "Request rate configured (RPS):",
    "duration": "Benchmark duration (s):",
    "total_input_tokens": "Total input tokens:",
    "total_output_tokens": "Total generated tokens:",
    "request_throughput": "Request throughput (req/s):",
    "request_goodput": "Request goodput (req/s):",
    "output_throughput": "Output token throughput (tok/s):",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s):",
    "max_concurrent_requests": "Peak concurrent requests:",
    "total_token_throughput": "Total token throughput (tok/s):",
    "client_cores": "CPU seconds per second of this client:",
}


def serving_table(result: Result) -> str:
    """The table of one load."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    for key, label in _COUNTS.items():
        value = result.get(key)
        if value is not None and value != "inf" and (value or key != "unfinished"):
            lines.append(_line(label, value))
    for metric, title in METRICS.items():
        if f"mean_{metric}_ms" in result:
            lines.append(title.center(_WIDTH, "-"))
            lines += [
                _line(f"{key.split('_')[0].capitalize()} {metric.upper()} (ms):", value)
                for key, value in result.items()
                if key.endswith(f"_{metric}_ms") and key.split("_")[0] not in ("server", "std")
            ]
            if (mean := result.get(f"server_mean_{metric}_ms")) is not None:
                lines.append(_line(f"The server's own mean {metric.upper()} (ms):", mean))
    if failures := result.get("failures"):
        lines.append("Failures".center(_WIDTH, "-"))
        lines += [f"{number:>6} x {error}" for error, number in failures.items()]
    return "\n".join([*lines, "=" * _WIDTH])


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *rows)
    )


def show(output: str, table: Callable[[], str], whole: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table, the whole result as JSON, or its rows as CSV."""
    print(table() if output == "table" else as_json(whole) if output == "json" else as_csv(rows))


def as_json(result: Any) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(result)).decode()


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line per row; lists and objects are left out."""
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict | list))
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def details(records: Sequence[RequestRecord]) -> Result:
    """The figures of each request, by vLLM's names, in seconds. TTFT and E2EL of failed requests are 0."""
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [0.0 if record.error else record.ttft for record in records],
        "itls": [record.itl for record in records],
        "e2els": [0.0 if record.error else record.e2el for record in records],
        "start_times": [record.sent for record in records],
        "errors": [record.error for record in records],
    }


def file_name(result: Result) -> str:
    """vLLM's name for a result's file."""
    at_once = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = result["model_id"].rpartition("/")[2]
    return f"{result['label']}-{result['request_rate']}qps{at_once}-{model}-{result['date']}.json"


def save(path: Path, result: Result) -> None:
    """Write a result as JSON.

    Raises:
        PyllmError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json(result) + "\n")
    except OSError as error:
        raise PyllmError(f"the result cannot be saved: {path}: {error.strerror}") from error


def load(path: Path) -> Result:
    """Read a result that pyllm or vLLM saved.

    Raises:
        ConfigError: the file cannot be read, or is no result.
    """
    try:
        result = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give two addresses or two files of --save-result") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no JSON of --save-result: {error}") from error
    if not isinstance(result, dict) or "request_throughput" not in result:
        raise ConfigError(f"{path} is no result of `bench serve`: it has no request_throughput")
    return result


def now() -> str:
    """The date of a result, as vLLM writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")


def _line(label: str, value: float) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<{_WIDTH - _VALUE}}{text:>{_VALUE}}"
