"""Every error that pyllm raises on purpose, as one tree. Does not know HTTP: `frontend/http/failure.py` does that.

PyllmError
├── ConfigError            a flag, keyword or model that cannot work
├── RequestError           the caller's request, and nothing else, is at fault
│   ├── RequestTooLargeError   it can never fit the context or the KV cache
│   ├── UnknownParameterError  a keyword that parameters do not have; a TypeError, too
│   └── TemplateRefusalError   the chat template cannot render its messages
├── ProfileRunningError    a profile is asked for while another one runs
├── DeadlineError          its timeout passed before there was anything to give
├── ProtocolError          a peer's frame that does not decode, or a wrong version
└── EngineDeadError        a process that the request needs is gone for good
    ├── StartError         it never became ready
    │   └── WrongSettingError  it found that a setting is wrong; a ConfigError, too
    ├── WorkerDeadError    a rank is gone, which its core replaces
    └── GivenUpError       it died more often than it may be started anew
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

# The cause of a worker's end: "killed" by a signal from elsewhere (SIGKILL, SIGTERM), "crashed" by its own fault (an
# exception, SIGSEGV, any other exit), its device had no memory left, it gave no sign of life, or it did not end its
# step. "orphaned": the process that it was forked from ended.
Cause = Literal["killed", "crashed", "out_of_memory", "silent", "stalled", "orphaned"]


# Parameters whose errors are about one prompt of several.
_PROMPTS = ("prompt", "prompts", "prompt_token_ids", "input", "messages", "cache_salt")


class PyllmError(Exception):
    """Base of every error raised on purpose; the text is meant for the user."""


class ConfigError(PyllmError, ValueError):
    """A setting is wrong, or two settings do not work together."""


class Field(str):
    """A field's name as a part of an error's message; the caller may know the field by another name."""

    __slots__ = ()


class RequestError(PyllmError, ValueError):
    """A request is wrong. `parameter` names the field at fault, in the caller's spelling, if there is one.

    A message of several parts has each name of a field as a `Field`. A text may begin with the parameter's.
    """

    def __init__(self, message: str | tuple[str, ...], parameter: str | None = None) -> None:
        self.parts = _split(message, parameter or "") if isinstance(message, str) else message
        super().__init__("".join(self.parts))
        self.parameter = parameter

    def name_fields(self, names: Mapping[str, str]) -> None:
        """Call fields by the caller's `names`, in the message and as the parameter; a second call changes nothing."""
        self.parts = tuple(renamed(part, names) if isinstance(part, Field) else part for part in self.parts)
        self.args = ("".join(self.parts),)
        self.parameter = self.parameter and renamed(self.parameter, names)

    @classmethod
    @contextmanager
    def of_item(cls, index: int, number: int, name: str = "", params: str = "") -> Iterator[None]:
        """Add the index of one of `number` prompts to errors about it in this block.

        The list is `name`, or else the error's parameter. Other errors are about an item of the list `params`, if any.
        """
        try:
            yield
        except cls as error:
            where = name or error.parameter if error.parameter in _PROMPTS else params
            if number > 1 and where:
                error.parts = (Field(where), f"[{index}]: ", *error.parts)
                error.args = ("".join(error.parts),)
            raise


class UnknownParameterError(RequestError, TypeError):
    """A keyword that `SamplingParams`, or other parameters, do not have."""


class RequestTooLargeError(RequestError):
    """A request that could never run: longer than the context, or than the whole KV cache.

    `num_tokens` is the prompt's length, a lower bound if it was not encoded, and `limit` the largest that fits. Both
    are None if the prompt alone would fit.
    """

    def __init__(
        self,
        message: str | tuple[str, ...],
        parameter: str | None = None,
        num_tokens: int | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message, parameter)
        self.num_tokens = num_tokens
        self.limit = limit


class TemplateRefusalError(RequestError):
    """The chat template raises an error for these messages; the message includes the template's."""


class ProfileRunningError(PyllmError):
    """A core records another profile already; it records one at a time, for all clients."""


class DeadlineError(PyllmError):
    """A request's timeout passed before it had any output; a request with tokens ends with these instead."""


class ProtocolError(PyllmError):
    """A peer sent a frame that does not decode, or speaks another version of the protocol."""


class EngineDeadError(PyllmError):
    """A process that a request needs is lost for good; after a single crash processes restart, and requests survive."""


class StartError(EngineDeadError):
    """A child process died or missed its deadline before it was ready; the message names the stage it was in."""


class WrongSettingError(StartError, ConfigError):
    """A child process found, while it started, that a setting is wrong; the message names it."""


class WorkerDeadError(EngineDeadError):
    """A worker died, or was ended because it gave no sign of life; `log` is the end of its output to stderr."""

    def __init__(self, message: str, cause: Cause = "crashed", log: bytes = b"") -> None:
        super().__init__(message)
        self.cause = cause
        self.log = log


class GivenUpError(EngineDeadError):
    """A process is not restarted: it died more often than `max_restarts` allows, or for good; the message says why."""


def root_of(path: str) -> str:
    """The field that a path such as `messages[0].content` begins with."""
    return path.partition(".")[0].partition("[")[0]


def renamed(path: str, names: Mapping[str, str]) -> str:
    """The caller's path of a field, where `names` has the caller's names of paths and of their beginnings."""
    root = root_of(path)
    return names.get(path) or f"{names.get(root, root)}{path.removeprefix(root)}"


def blame(process: str, num_times: int, num_alone: int) -> str:
    """The error for a request that crashed its process `num_times` times, the last `num_alone` while it ran alone."""
    return f"this request ended the {process} that computed it {num_times} times, the last {num_alone} alone"


def _split(message: str, parameter: str) -> tuple[str, ...]:
    """The parts of a message, of which the first is its field if the message begins with it."""
    for field in (parameter, root_of(parameter)):
        rest = message.removeprefix(field)
        if field and rest != message and not (rest[:1].isalnum() or rest[:1] == "_"):
            return Field(field), rest
    return (message,)
