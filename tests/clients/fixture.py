"""A recorded request as a fixture: what a server reads of it stays; texts and names of other people do not.

Fields, types, nesting and lengths are those of the record. Long texts, which are the programs' own, become filler
words of the same lengths; ids, dates and paths become fixed ones.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from pyllm.frontend.requests.model_tags import LATEST

FOLDER = Path(__file__).parent / "recorded"
HEADERS = frozenset({"accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta"})
MODEL = "scripted"
# Beyond this many characters a text is a program's own, not one of our checks'.
LONG = 60
# Words by their length; longer ones are put together.
WORDS = {
    1: "a",
    2: "of to in is on by it or be at",
    3: "the and for are but not you all any can",
    4: "that with have this will your from they know want",
    5: "about their which would there could other after first never",
    6: "should people little before around number always during system moment",
    7: "through between another because thought country problem however without morning",
    8: "question children possible together interest business anything consider remember standard",
}
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32,64}\b")
_PLACE = re.compile(r"/(?:tmp|root|home|work)/[\w./-]+")
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")
# A grammar must stay one. Its text is as long as the recorded one.
_GRAMMAR = 'start: "*** Begin Patch" LF line+ "*** End Patch" LF?\nline: /[^*\\n][^\\n]*/ LF\n%import common.LF\n'


class Fixture(msgspec.Struct, omit_defaults=False):
    """One request. `ignored` are the fields that the answer's header names; None: not checked.

    `status` is that of the answer: some programs try what only one server has, and do without it after an error.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    ignored: list[str] | None = None
    status: int = 200

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Fixture":
        """The fixture of a record."""
        headers = {name.lower(): value for name, value in record["headers"].items()}
        body = _scrubbed(record["body"], "", itertools.count())
        if isinstance(body, dict) and "model" in body:
            body["model"] = f"{MODEL}{LATEST}" if str(body["model"]).endswith(LATEST) else MODEL
        kept = {name: value for name, value in sorted(headers.items()) if name in HEADERS}
        return cls(record["method"], record["path"], kept, body)

    @classmethod
    def read(cls, path: Path) -> "Fixture":
        """The fixture in a file."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self, path: Path) -> None:
        """Put it into a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def _scrubbed(value: Any, key: str, counter: "itertools.count[int]") -> Any:
    match value:
        case dict():
            return {name: _scrubbed(each, name, counter) for name, each in value.items()}
        case list():
            return [_scrubbed(each, key, counter) for each in value]
        case str():
            return _text(value, key, counter)
        case int() if value > 10**12:  # a time in milliseconds
            return 10**12
        case _:
            return value


def _text(text: str, key: str, counter: "itertools.count[int]") -> str:
    if key == "definition":
        comment = "// " + "x" * max(0, len(text) - len(_GRAMMAR) - 4) + "\n"
        return comment + _GRAMMAR
    if text[:1] in "{[" and len(text) > LONG:
        try:
            return json.dumps(_scrubbed(json.loads(text), "", counter))
        except ValueError:
            pass
    if key != "$schema" and (len(text) > LONG or (key == "description" and len(text) > 24)):
        return re.sub(r"[^\W\d_]+", lambda match: _word(len(match[0]), next(counter)), re.sub(r"\d", "0", text))
    text = _ID.sub(lambda match: re.sub(r"[0-9a-f]", "0", match[0]), text)
    return _DAY.sub("2000-01-01", _PLACE.sub("/home/user/project", text))


def _word(length: int, number: int) -> str:
    if length not in WORDS:
        return _word(8, number) + _word(length - 8, number + 1)
    words = WORDS[length].split()
    return words[number % len(words)]
