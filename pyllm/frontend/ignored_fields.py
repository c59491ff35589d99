"""Fields of requests that have no effect here: how a struct marks them, and how they are counted, logged and told.

Knows no API and no body: `body_shape.py` finds these fields.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from pyllm.config import UnknownFields
from pyllm.errors import RequestError

# The response header that names the fields.
HEADER = b"pyllm-ignored-fields"
# Names in one header, characters of a name, and bytes of the header: requests choose the names.
MAX_NAMES = 64
MAX_NAME_CHARACTERS = 80
MAX_HEADER_BYTES = 2048
# Names that one process counts and logs. Fields beyond them, and names that cannot be shown, count as `OTHER`.
MAX_COUNTED_NAMES = 256
OTHER = "other"

# Is given the name of a field that turns out to have no effect, and what a strict server answers.
Ignore = Callable[[str, str], None]

_MARK = "hint"
_SHOWN = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_NAME_CHARACTERS}}}")

logger = logging.getLogger(__name__)


# A field that asks for nothing that would change the answer. It may have any value. `--unknown-fields refuse` refuses
# it unless the value is null or the field's default.
Hint = Annotated[Any, Meta(description="Accepted without effect.", extra={_MARK: "refusable"})]
# The same for a field that every server accepts.
NoEffect = Annotated[Any, Meta(description="Accepted without effect.", extra={_MARK: "accepted"})]


def hint_kind(extra: dict[str, Any] | None) -> str | None:
    """Which of the marks a field's `extra` has: refusable, accepted, or None."""
    return None if extra is None else extra.get(_MARK)


class RequestFields:
    """The fields of one request that have no effect. `policy` is that of the server."""

    __slots__ = ("_names", "num_unnamed", "policy")

    def __init__(self, policy: UnknownFields = "warn") -> None:
        self.policy = policy
        self.num_unnamed = 0
        self._names: dict[str, None] = {}  # in the order in which they came

    @property
    def names(self) -> Iterable[str]:
        """Each name once, at most `MAX_NAMES`; `num_unnamed` fields come beside them."""
        return self._names

    def ignore(self, name: str, refusal: str | None = None) -> None:
        """Note a field by its path, such as `tools.defer_loading`.

        Raises:
            RequestError: the server is strict; `refusal` is the text.
        """
        if self.policy == "refuse":
            raise RequestError(refusal or f"{name:.80} is not supported yet; leave it out", f"{name:.80}")
        if self.policy == "ignore" or name in self._names:
            return
        if len(self._names) < MAX_NAMES:
            self._names[name] = None
        else:
            self.num_unnamed += 1

    def ignore_unknown(self, prefix: str, names: Sequence[str]) -> None:
        """Note fields below a prefix that no struct knows; raises as `ignore` does."""
        if self.policy == "refuse":
            self.ignore(prefix + names[0], f"{prefix + names[0]:.80} is not a known field")
        known = self._names
        new = [path for name in names if (path := prefix + name) not in known]
        if new:  # Those of one message are mostly those of the last.
            room = MAX_NAMES - len(known)
            known.update(dict.fromkeys(new[:room]))
            self.num_unnamed += max(0, len(new) - room)


class IgnoredFields:
    """Counts of all requests of one process, by name."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def tell(self, fields: RequestFields) -> bytes:
        """Count the fields of one request, log names that are new, and give the value of the header; empty: none."""
        shown: dict[str, None] = {}
        num_unshown = fields.num_unnamed
        counts = self.counts
        for name in fields.names:
            if name in counts:
                counts[name] += 1
                shown[name] = None
            elif _SHOWN.fullmatch(name) is None:
                num_unshown += 1
            else:
                self._count_new(name)
                shown[name] = None
        if num_unshown:
            counts[OTHER] = counts.get(OTHER, 0) + num_unshown
        return _header(list(shown), num_unshown)

    def _count_new(self, name: str) -> None:
        if len(self.counts) >= MAX_COUNTED_NAMES:
            self.counts[OTHER] = self.counts.get(OTHER, 0) + 1
            return
        self.counts[name] = 1
        logger.warning("requests have the field %s, which has no effect here (--unknown-fields)", name)


def _header(names: list[str], num_unshown: int) -> bytes:
    text = ", ".join(names)
    while len(text) > MAX_HEADER_BYTES - 32:
        num_unshown += 1
        names.pop()
        text = ", ".join(names)
    if num_unshown:
        text = f"{text}, +{num_unshown} more" if text else f"+{num_unshown} more"
    return text.encode()
