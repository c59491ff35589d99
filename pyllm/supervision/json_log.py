"""A JSON log: its records, with other output to stderr turned into records. `pyllm/log.py` sets it up."""

import datetime
import itertools
import json
import logging
from typing import Any

from pyllm.supervision import line_writer


def is_json() -> bool:
    """Whether this process logs JSON, so that it must write nothing else."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def forward(child: str, lines: bytes) -> None:
    """Write lines of a child's stderr. In a JSON log other lines, such as stacks of a crash, become a record."""
    if not is_json():
        line_writer.stderr().forward(lines)
        return
    for is_record, group in itertools.groupby(lines.splitlines(keepends=True), lambda line: line.startswith(b"{")):
        if is_record:
            line_writer.stderr().forward(b"".join(group))
        elif text := b"".join(group).decode(errors="backslashreplace").strip("\n"):
            # It is an error, so that no log level hides it.
            logging.getLogger(__name__).error("%s", text, extra={"fields": {"process": child}})


class JsonFormatter(logging.Formatter):
    """A line of JSON for each record: time, level, process, logger, message, request id and `fields`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
