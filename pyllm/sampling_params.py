"""What a user may ask of one request's sampling, checked. Knows neither the wire nor the model's limits."""

from collections.abc import Sequence

import msgspec

from pyllm.errors import RequestError

MAX_SAMPLES = 16_384
MAX_STOP_STRINGS = 4


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names, meanings and defaults are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1 is off. `max_tokens` None is all that is left of the context. `seed`
    None lets the client draw one. `stop` strings end the text before the match, or after it where
    `include_stop_str_in_output` is set.

    Raises:
        RequestError: a value is out of its range; the text has the value and the range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        check("n", self.n, 1 <= self.n <= MAX_SAMPLES, f"from 1 to {MAX_SAMPLES}")
        check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "from 0 to 100")
        check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        check("top_k", self.top_k, -1 <= self.top_k < 2**31, "-1 or 0 (off), or positive and below 2**31")
        check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "from 0 to 1")
        if self.seed is not None:
            check("seed", self.seed, -(2**63) <= self.seed < 2**64, "a 64-bit integer")
        if self.max_tokens is not None:
            check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        check(
            "stop",
            len(self.stop_strings),
            len(self.stop_strings) <= MAX_STOP_STRINGS,
            f"at most {MAX_STOP_STRINGS} strings",
        )
        if any(not text for text in self.stop_strings):
            raise RequestError("stop must not contain an empty string", "stop")
        for token in self.stop_token_ids:
            check("stop_token_ids", token, 0 <= token < 2**31, "token ids, 0 or more")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever way it was given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def check(name: str, value: float, holds: bool, allowed: str) -> None:
    """Refuse a value of a request by its name, unless the condition holds; `allowed` says which values do.

    Raises:
        RequestError: it does not hold.
    """
    if not holds:
        raise RequestError(f"{name} must be {allowed}, got {value}", name)
