"""Request fields that have no effect: how structs mark them, and how pyllm counts, logs and reports them.

Knows no API and no body: `frontend/http/body_shape.py` finds these fields.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from pyllm.config.server_settings import UnknownFields
from pyllm.errors import RequestError
from pyllm.frontend.text.json_schemas import Ignore

# The response header that names the fields.
IGNORED_FIELDS_HEADER = b"pyllm-ignored-fields"
# Names in one header, characters of a name, and bytes of the header: requests choose the names.
MAX_NAMES = 64
MAX_NAME_CHARACTERS = 80
MAX_HEADER_BYTES = 2048
# Names that one process counts and logs, beside those of hints. Other names, and such as cannot be shown, count as
# `OTHER`.
MAX_COUNTED_NAMES = 256
OTHER = "other"

_MORE = ", and others"
_REFUSABLE = "refusable"
_SHOWN = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_NAME_CHARACTERS}}}")

logger = logging.getLogger(__name__)


# A field that asks for nothing that would change the answer. It may have any value. `--unknown-fields refuse` refuses
# it unless the value is null or the field's default.
Hint = Annotated[Any, Meta(description="Accepted without effect.", extra={_REFUSABLE: True})]
# The same for a field that every server accepts.
NoEffect = Annotated[Any, Meta(description="Accepted without effect.", extra={_REFUSABLE: False})]


def is_refusable(extra: dict[str, Any] | None) -> bool | None:
    """Whether a strict server refuses the field that has this mark; None for a field without one."""
    return None if extra is None else extra.get(_REFUSABLE)


def ignore_server_tool(kind: str, where: str, ignore: Ignore) -> None:
    """Note a tool that is not shown to the model, as its type is not one that the caller runs."""
    ignore(f"tools.{kind}", f"{where}: tools of type {kind:.80} are not supported, as they run on a server")


class RequestFields:
    """The fields of one request that have no effect. `policy` is that of the server."""

    __slots__ = ("_names", "has_more", "policy")

    def __init__(self, policy: UnknownFields = "warn") -> None:
        self.policy = policy
        self.has_more = False  # fields beside the first `MAX_NAMES`
        self._names: dict[str, bool] = {}  # in the order in which they came

    @property
    def names(self) -> Iterable[tuple[str, bool]]:
        """Each name once, at most `MAX_NAMES`, and whether it is the name of a hint, which no request chooses."""
        return self._names.items()

    def ignore(self, name: str, refusal: str) -> None:
        """Note a field by its path, such as `tools.defer_loading`.

        Raises:
            RequestError: the server is strict; `refusal` is the text.
        """
        if self.policy == "refuse":
            raise RequestError(refusal, f"{name:.80}")
        if self.policy == "warn" and name not in self._names:
            self._note([name], is_hint=False)

    def ignore_hint(self, name: str, refusable: bool) -> None:
        """Note a marked field; raises as `ignore` does."""
        if refusable and self.policy == "refuse":
            self.ignore(name, f"{name:.80} is not supported yet; leave it out")
        if self.policy == "warn" and name not in self._names:
            self._note([name], is_hint=True)

    def ignore_unknown(self, prefix: str, names: Sequence[str]) -> None:
        """Note fields below a prefix that no struct knows; raises as `ignore` does."""
        if self.policy == "refuse":
            self.ignore(prefix + names[0], f"{prefix + names[0]:.80} is not a known field")
        known = self._names
        if new := [path for name in names if (path := prefix + name) not in known]:
            self._note(new, is_hint=False)

    def _note(self, new: Sequence[str], is_hint: bool) -> None:
        room = MAX_NAMES - len(self._names)
        # A name that is too long is never shown, and need not be kept.
        self._names.update(dict.fromkeys([name[: MAX_NAME_CHARACTERS + 1] for name in new[:room]], is_hint))
        self.has_more |= len(new) > room


class IgnoredFields:
    """Counts of all requests of one process, by name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, fields: RequestFields) -> bytes:
        """Count the fields of one request, log new names, and give the header's value; empty where there are none."""
        shown: list[str] = []
        has_more = fields.has_more
        counts = self.counts
        for name, is_hint in fields.names:
            if name in counts:
                counts[name] += 1
            elif _SHOWN.fullmatch(name) is None:
                has_more = True
                continue
            else:
                self._count_new(name, is_hint)
            shown.append(name)
        if has_more:
            counts[OTHER] = counts.get(OTHER, 0) + 1
        return _header(shown, has_more)

    def _count_new(self, name: str, is_hint: bool) -> None:
        if len(self.counts) >= MAX_COUNTED_NAMES and not is_hint:
            self.counts[OTHER] = self.counts.get(OTHER, 0) + 1
            return
        self.counts[name] = 1
        logger.warning("requests have the field %s, which has no effect here (--unknown-fields)", name)


def _header(names: list[str], has_more: bool) -> bytes:
    text = ", ".join(names)
    room = MAX_HEADER_BYTES - len(_MORE)
    if len(text) > room:
        text, has_more = text[:room].rpartition(", ")[0], True
    return (text + _MORE if has_more else text).removeprefix(", and ").encode()
