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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

# How a worker came to its end: by a signal from elsewhere (SIGKILL, SIGTERM), by its own fault (an exception, SIGSEGV,
# any other exit), because its device had no memory left, because it gave no sign of life, or did not end its step.
# "orphaned": with the process that it was forked from.
Cause = Literal["killed", "crashed", "out_of_memory", "silent", "stalled", "orphaned"]


# Parameters whose errors are about one prompt of several.
_PROMPTS = ("prompt", "prompts", "prompt_token_ids", "input", "messages", "cache_salt")


class PyllmError(Exception):
    """Base of every error raised on purpose; the text is meant for the user."""


class ConfigError(PyllmError, ValueError):
    """A setting is wrong, or two of them do not go together."""


class RequestError(PyllmError, ValueError):
    """A request is wrong. `parameter` names the field at fault, as the caller spells it, when there is one."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter

    @classmethod
    @contextmanager
    def of_item(cls, index: int, number: int, name: str = "", params: str = "") -> Iterator[None]:
        """Errors in here about a prompt say which of so many is at fault, in the list of this name or the parameter.

        `params` is the list of which each has one, if there is one: other errors are in it.
        """
        try:
            yield
        except cls as error:
            where = name or error.parameter if error.parameter in _PROMPTS else params
            if number > 1 and where:
                error.args = (f"{where}[{index}]: {error}",)
            raise


class UnknownParameterError(RequestError, TypeError):
    """A keyword that `SamplingParams`, or other parameters, do not have."""


class RequestTooLargeError(RequestError):
    """A request that could never run: longer than the context, or than the whole KV cache.

    `num_tokens` is the prompt's length, a lower bound where it was not encoded, and `limit` the most that fit. Both are
    None where the prompt alone would fit.
    """

    def __init__(
        self, message: str, parameter: str | None = None, num_tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message, parameter)
        self.num_tokens = num_tokens
        self.limit = limit


class TemplateRefusalError(RequestError):
    """The chat template raises an error for these messages; the text has the template's own."""


class ProfileRunningError(PyllmError):
    """A core makes one profile at a time, for whichever client."""


class DeadlineError(PyllmError):
    """A request's timeout passed before there was anything to give; what has tokens by then ends with those."""


class ProtocolError(PyllmError):
    """A peer sent a frame that does not decode, or speaks another version of the protocol."""


class EngineDeadError(PyllmError):
    """What a request needs is gone for good. One death is not: other processes follow, and requests outlive it."""


class StartError(EngineDeadError):
    """A child process died or missed its deadline before it was ready; the text names the stage it was in."""


class WrongSettingError(StartError, ConfigError):
    """A child process found, while it started, that a setting is wrong; the text says which."""


class WorkerDeadError(EngineDeadError):
    """A worker died, or was ended because it gave no sign of life; `log` is the end of what it wrote to stderr."""

    def __init__(self, message: str, cause: Cause = "crashed", log: bytes = b"") -> None:
        super().__init__(message)
        self.cause = cause
        self.log = log


class GivenUpError(EngineDeadError):
    """A process is not started anew: it died more often than `max_restarts` allows, or for good; the text says why."""


def blame(process: str, num_times: int, num_alone: int) -> str:
    """The error of a request that crashed its process so many times, the last ones while it ran alone."""
    return f"this request ended the {process} that computed it {num_times} times, the last {num_alone} alone"
