"""The requests of a batch, one JSON object a line in OpenAI's format. All are checked before the first is sent.

Keeps only the position of each line in memory. Knows no server; of a body it reads few fields.
"""

from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pyllm.errors import ConfigError

CHATS = ("/v1/chat/completions", "/v1/responses")
_SCORES = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify")  # as in vLLM's run-batch
URLS = (*CHATS, "/v1/completions", "/v1/embeddings", *_SCORES)

_LONGEST_ID = 512  # characters, as in OpenAI's API


class WrongLinesError(ConfigError):
    """Lines that are no requests of a batch; `problems` has a message for each, with its line number."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        more = f", and {len(problems) - 1} more lines are wrong" if len(problems) > 1 else ""
        super().__init__(f"nothing was sent: {path}, {problems[0]}{more}")
        self.problems = problems


class BatchRequest(msgspec.Struct, frozen=True, gc=False):
    """One line: `offset` and `num_bytes` are its position and length in the file.

    `needs_template`: it has messages, and brings no chat template.
    """

    custom_id: str
    url: str
    offset: int
    num_bytes: int
    needs_template: bool = False


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    chat_template: Any = None


class _Line(msgspec.Struct):
    body: msgspec.Raw


class _CheckedLine(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: _Body


class RequestFile:
    """The file, open until the `with` block ends. `requests` are in its order; `models` are all that bodies name.

    Raises:
        WrongLinesError: lines are wrong.
        ConfigError: the file cannot be read, or has no requests.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[BatchRequest] = []
        self.models: set[str] = set()
        try:
            self._file: BinaryIO = path.open("rb")
            problems = self._read()
        except OSError as error:
            raise ConfigError(f"cannot read the requests in {path}: {error.strerror}") from None
        if problems:
            self._file.close()
            raise WrongLinesError(path, problems)
        if not self.requests:
            self._file.close()
            raise ConfigError(f"{path} has no requests: each line is an object with custom_id, method, url and body")

    def __enter__(self) -> "RequestFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def body(self, request: BatchRequest) -> bytes:
        """The request's body, as its bytes in the file."""
        self._file.seek(request.offset)
        return bytes(msgspec.json.decode(self._file.read(request.num_bytes), type=_Line).body)

    def _read(self) -> list[str]:
        """Read all requests; returns one message for each wrong line."""
        problems: list[str] = []
        lines: dict[str, int] = {}  # of each custom_id
        decoder = msgspec.json.Decoder(_CheckedLine)
        offset = 0
        for number, content in enumerate(self._file, 1):
            begin, offset = offset, offset + len(content)
            if not content.strip():
                continue
            try:
                line = decoder.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                problems.append(f"line {number}: {_reason(error)}")
                continue
            problem = _problem(line)
            if not problem and (first := lines.setdefault(line.custom_id, number)) != number:
                problem = f"custom_id {line.custom_id!r} is that of line {first}, too"
            if problem:
                problems.append(f"line {number}: {problem}")
                continue
            if line.body.model is not None:
                self.models.add(line.body.model)
            needs_template = line.url in CHATS and line.body.chat_template is None
            self.requests.append(BatchRequest(line.custom_id, line.url, begin, len(content), needs_template))
        return problems


def _problem(line: _CheckedLine) -> str:
    """The fault of a line that is an object with the right fields; empty if there is none."""
    if not 0 < len(line.custom_id) <= _LONGEST_ID:
        return f"custom_id has {len(line.custom_id)} characters: it must have 1 to {_LONGEST_ID}"
    if line.method != "POST":
        return f"method is {line.method!r:.80}: it must be POST"
    if line.url not in URLS:
        return f"url is {line.url!r:.80}: it must be one of {', '.join(URLS)}"
    return "stream is true: a batch has whole answers, leave it out" if line.body.stream else ""


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        text, _, place = str(error).replace("`", "").partition(" - at $")
        return f"{place.lstrip('.')}: {text}" if place else text
    return f"no JSON: {error}"
