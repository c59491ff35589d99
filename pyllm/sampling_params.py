"""`SamplingParams`: the checked sampling parameters of a request. Knows neither the wire nor the model's limits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter, is_
from types import NoneType
from typing import Any

import msgspec

from pyllm import vllm_parameters
from pyllm.arguments import (
    NamedParameters,
    as_list,
    check,
    flag,
    instance,
    integer,
    mapping,
    number,
    refuse,
    text,
    texts,
    token_ids,
)
from pyllm.errors import RequestError
from pyllm.structured_outputs_params import StructuredOutputsParams

MAX_SAMPLES = 16_384
DEFAULT_MAX_TOKENS = 16  # the default of vLLM's Python API
MAX_STOP_STRINGS = 1024
MAX_STOP_CHARACTERS = 65_536  # of all of them together, which take the event loop 1 ms to sort
MAX_STOP_STRING_CHARACTERS = 1024  # of one: as many may be held back, and looked at at once when they go another way
MAX_LOGPROB_TOKEN_IDS = 128  # vLLM's
MAX_BAD_WORDS = 128
MAX_BAD_WORDS_TOKENS = 1 << 16  # of all of them together: a word's tokens differ with what is around it
MAX_BAD_WORD_CHARACTERS = 4096  # of all of them together
MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0  # OpenAI's; what is beyond is taken for it
MAX_EXTRA_ARGS_BYTES = 1 << 16  # They travel with every start of the request, preemptions included.

# Workers have float32: these go into it, and what comes of them there is still finite and above 0.
REPETITION_PENALTIES = (0.01, 100.0)
LEAST_POSITIVE = 1e-30  # A positive temperature or top_p below it is taken for it, which changes no choice.

MAX_LENGTH_PENALTY = 10.0  # Either way; the scheduler has float64, which holds the power of any length.

_NUMBERS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "length_penalty",
)
_INTEGERS = ("n", "top_k", "min_tokens", "beam_width")
_OPTIONAL_INTEGERS = (
    *("seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "stream_interval"),
    "thinking_token_budget",
)
_SEQUENCES = ("bad_words_token_ids", "reasoning_start_token_ids", "reasoning_end_token_ids")
_FLAGS = (
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("detokenize", "skip_clone"),
)

_FIXED = vllm_parameters.SAMPLING
_FIXED_OF, _FIXED_DEFAULTS = attrgetter(*_FIXED), tuple(parameter.values[0] for parameter in _FIXED.values())
_NUMBERS_OF, _INTEGERS_OF = attrgetter(*_NUMBERS), attrgetter(*_INTEGERS)
_OPTIONAL_INTEGERS_OF, _FLAGS_OF = attrgetter(*_OPTIONAL_INTEGERS), attrgetter(*_FLAGS)

# Parameters that beam search excludes: its candidates are the model's likeliest tokens.
_NOT_WITH_BEAMS = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "bad_words_token_ids",
    "structured_outputs",
    "extra_args",
    "thinking_token_budget",
    "stop",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
)


class RequestOutputKind(Enum):
    """The kind of outputs while a request runs; the names are vLLM's.

    `CUMULATIVE`: all of the output so far, each time. `DELTA`: new output only. `FINAL_ONLY`: the finished output only.
    """

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(
    msgspec.Struct, metaclass=NamedParameters, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True
):
    """Names, meanings and defaults are vLLM's, `max_tokens` included: 16, of which a chat needs more.

    `temperature` 0 is greedy, and then `top_k`, `top_p` and `min_p` have no effect. `top_k` 0 or -1 is off.
    `max_tokens` None is all that is left of the context, and 0 the prompt alone. `seed` None
    or -1 lets the client draw one. `stop` strings end the text before the match, or after it where
    `include_stop_str_in_output` is set; neither they nor stop tokens end it before `min_tokens`. There are at most
    1,024 of them, of at most 1,024 characters each and 65,536 together.
    `bad_words` are texts, which take a tokenizer; `bad_words_token_ids` are the same for who has none. `logit_bias` has
    at most 1,024 tokens, each by at most 100 up or down; what is beyond 100 is taken for it.
    `extra_args` are the arguments of logits processors and samplers, by the names of their entry points. Plain values
    below other names go to the only one that is installed.

    After `thinking_token_budget` tokens of reasoning its end is forced, and the model goes on with its answer; 0 is at
    once, -1 no limit. The markers are those of the model's reasoning parser; who has no tokenizer gives them as
    `reasoning_start_token_ids`, one of which ends the prompt or begins the output, none if the model always reasons,
    and `reasoning_end_token_ids`, of which the first is what is forced.

    `logprobs` and `prompt_logprobs` count the likeliest tokens whose log-probabilities come beside the token's own; -1
    is the whole vocabulary. `logprob_token_ids` are at most 128 tokens that come in place of the likeliest.
    They are those of the model: neither temperature nor anything else here changes them.

    `truncate_prompt_tokens` keeps the last so many tokens of the prompt; -1 keeps what fits the context beside
    `max_tokens`. `output_kind` says which outputs a request gives while it runs, `stream_interval` after how many
    tokens at least. Without `detokenize` outputs have no text.

    `spaces_between_special_tokens` and `skip_clone` change nothing. The fields from `flat_logprobs` on are vLLM's, and
    have one value here: any other is refused with what to use instead.

    With a `beam_width` the output is that of a beam search, and `n` must be the same number. The candidates are chosen
    by the model's log-probabilities alone, so any `temperature` and `seed` are accepted and have no effect.

    Attributes may be changed until a request is made of it, which checks them again.

    Raises:
        RequestError: a value is out of its range; the text has the value and the range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    seed: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    extra_args: dict[str, Any] | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    thinking_token_budget: int | None = None
    reasoning_start_token_ids: Sequence[Sequence[int]] = ()
    reasoning_end_token_ids: Sequence[Sequence[int]] = ()
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    skip_clone: bool = False
    logprob_token_ids: Sequence[int] | None = None
    flat_logprobs: bool = False
    prompt_logprob_token_ids: Sequence[int] | None = None
    prompt_logprob_start: int | None = None
    skip_reading_prefix_cache: bool | None = None
    watermarking: bool | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Sequence[int] | None = None
    output_text_buffer_length: int = 0
    best_of: int | None = None
    guided_decoding: Any = None
    logits_processors: Any = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check all values, and read numbers of numpy as Python's; raises as the constructor does."""
        self._read_types()
        check("n", self.n, 1 <= self.n <= MAX_SAMPLES, f"from 1 to {MAX_SAMPLES}")
        check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "from 0 to 100")
        check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        check("top_k", self.top_k, -1 <= self.top_k < 2**31, "-1 or 0 (off), or positive and below 2**31")
        check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "from 0 to 1")
        if self.seed == -1:
            self.seed = None
        if self.seed is not None:
            check("seed", self.seed, -(2**63) <= self.seed < 2**64, "a 64-bit integer")
        self._check_logits_changes()
        self._check_ends()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None:
                check(name, count, count >= -1, "0 or more, -1 for the whole vocabulary, or left out")
        self._check_logprob_tokens()
        if self.structured_outputs is not None:
            self._exclude("structured_outputs", ("ignore_eos", "min_tokens"))
        self._check_outputs()
        self._check_beams()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, in whichever form it was given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def num_logprobs(self) -> int | None:
        """The number of log-probabilities beside the token's own; None: no log-probabilities."""
        return len(self.logprob_token_ids) if self.logprob_token_ids else self.logprobs

    def _read_types(self) -> None:
        # Servers make these several times for each request, so values of the right types must be cheap.
        if set(map(type, _NUMBERS_OF(self))) != {float}:
            for name in _NUMBERS:
                setattr(self, name, number(name, getattr(self, name)))
        if set(map(type, _INTEGERS_OF(self))) != {int}:
            for name in _INTEGERS:
                setattr(self, name, integer(name, getattr(self, name)))
        if not set(map(type, _OPTIONAL_INTEGERS_OF(self))) <= {int, NoneType}:
            for name in _OPTIONAL_INTEGERS:
                setattr(self, name, _count(name, getattr(self, name)))
        if set(map(type, _FLAGS_OF(self))) != {bool}:
            for name in _FLAGS:
                setattr(self, name, flag(name, getattr(self, name)))
        self._read_lists()
        if self.structured_outputs is not None:
            instance("structured_outputs", self.structured_outputs, StructuredOutputsParams)
        for name in () if self.extra_args is None else mapping("extra_args", self.extra_args):
            text("extra_args", name)
        instance("output_kind", self.output_kind, RequestOutputKind)
        if not all(map(is_, _FIXED_OF(self), _FIXED_DEFAULTS)):
            vllm_parameters.refuse_other_values(_FIXED, dict(zip(_FIXED, _FIXED_OF(self), strict=True)))

    def _read_lists(self) -> None:
        self.stop = () if self.stop is None else self.stop
        if not isinstance(self.stop, str):
            texts("stop", self.stop)
        self.bad_words = texts("bad_words", () if self.bad_words is None else self.bad_words)
        self.stop_token_ids = token_ids("stop_token_ids", () if self.stop_token_ids is None else self.stop_token_ids)
        for name in ("allowed_token_ids", "logprob_token_ids"):
            if (given := getattr(self, name)) is not None:
                setattr(self, name, token_ids(name, given))
        for name in _SEQUENCES:
            sequences = as_list(getattr(self, name))
            if not isinstance(sequences, list | tuple):
                refuse(name, sequences, "a list of lists of token ids")
            setattr(self, name, [token_ids(name, each) for each in sequences] if sequences else ())
        if self.logit_bias is not None:
            biases = mapping("logit_bias", self.logit_bias)
            self.logit_bias = {
                integer("logit_bias", token): number("logit_bias", bias) for token, bias in biases.items()
            }

    def _check_outputs(self) -> None:
        for name, least in (("stream_interval", 1), ("truncate_prompt_tokens", -1)):
            if (value := getattr(self, name)) is not None:
                check(name, value, value >= least and value != 0, "at least 1" + ", or -1" * (least < 0))
        if not self.detokenize and self.stop:
            raise RequestError("stop strings are found in text: leave detokenize out, or stop", "stop")

    def _check_logits_changes(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            check(name, getattr(self, name), -2.0 <= getattr(self, name) <= 2.0, "from -2 to 2")
        least, most = REPETITION_PENALTIES
        repetition = self.repetition_penalty
        check("repetition_penalty", repetition, least <= repetition <= most, f"from {least:g} to {most:g}")
        num_biases = len(self.logit_bias or {})
        check("logit_bias", num_biases, num_biases <= MAX_LOGIT_BIASES, f"at most {MAX_LOGIT_BIASES} tokens")
        _check_tokens("logit_bias", self.logit_bias or ())
        if self.allowed_token_ids is not None:
            check("allowed_token_ids", "none", len(self.allowed_token_ids) > 0, "left out, or at least one token id")
            _check_tokens("allowed_token_ids", self.allowed_token_ids)
        for name, most in (("bad_words", MAX_BAD_WORDS), *((name, MAX_BAD_WORDS_TOKENS) for name in _SEQUENCES)):
            words = getattr(self, name)
            check(name, len(words), len(words) <= most, f"at most {most}")
            if not all(words):
                raise RequestError(f"{name} must not contain an empty one", name)
        num_characters = sum(map(len, self.bad_words or ()))
        allowed = f"at most {MAX_BAD_WORD_CHARACTERS} characters together"
        check("bad_words", num_characters, num_characters <= MAX_BAD_WORD_CHARACTERS, allowed)
        for name in _SEQUENCES:
            for tokens in getattr(self, name):
                _check_tokens(name, tokens)
        budget = self.thinking_token_budget = None if self.thinking_token_budget == -1 else self.thinking_token_budget
        if budget is not None:
            check("thinking_token_budget", budget, 0 <= budget < 2**31, "0 or more, or -1 for no limit")
            self._exclude("thinking_token_budget", ("allowed_token_ids", "extra_args"))

    def _check_logprob_tokens(self) -> None:
        if not self.logprob_token_ids:
            return
        number = len(self.logprob_token_ids)
        check("logprob_token_ids", number, number <= MAX_LOGPROB_TOKEN_IDS, f"at most {MAX_LOGPROB_TOKEN_IDS} tokens")
        _check_tokens("logprob_token_ids", self.logprob_token_ids)
        if self.logprobs not in (None, number):
            text = f"logprob_token_ids are {number}, which come in place of the {self.logprobs} likeliest tokens"
            raise RequestError(f"{text} that logprobs asks for; leave logprobs out", "logprobs")

    def _check_ends(self) -> None:
        if self.max_tokens is not None:
            least = 1 if self.beam_width else 0
            check("max_tokens", self.max_tokens, self.max_tokens >= least, f"at least {least}")
        check("min_tokens", self.min_tokens, 0 <= self.min_tokens < 2**31, "0 or more")
        if self.max_tokens is not None:
            allowed = f"at most max_tokens, {self.max_tokens}"
            check("min_tokens", self.min_tokens, self.min_tokens <= self.max_tokens, allowed)
        self._check_stop_strings()
        _check_tokens("stop_token_ids", self.stop_token_ids or ())

    def _check_stop_strings(self) -> None:
        strings = self.stop_strings
        if not strings:
            return
        check("stop", len(strings), len(strings) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        if not all(strings):
            raise RequestError("stop must not contain an empty string", "stop")
        longest, total = max(map(len, strings)), sum(map(len, strings))
        allowed = f"strings of at most {MAX_STOP_STRING_CHARACTERS} characters each"
        check("stop", longest, longest <= MAX_STOP_STRING_CHARACTERS, allowed)
        check("stop", total, total <= MAX_STOP_CHARACTERS, f"at most {MAX_STOP_CHARACTERS} characters together")

    def _check_beams(self) -> None:
        check("beam_width", self.beam_width, self.beam_width >= 0, "0 (no beam search) or more")
        check_length_penalty(self.length_penalty)
        if self.beam_width:
            check("n", self.n, self.n == self.beam_width, f"the beam_width, {self.beam_width}, as many as come out")
            self._exclude("beam_width", _NOT_WITH_BEAMS)
        elif self.length_penalty != 1.0:
            raise RequestError("length_penalty is for beam search: set beam_width, or leave it out", "length_penalty")

    def _exclude(self, name: str, others: Collection[str]) -> None:
        """Refuse each of `others` that has an effect, as it excludes the parameter `name`."""
        for field in msgspec.structs.fields(self):
            if field.name not in others:
                continue
            value = getattr(self, field.name)
            is_neutral = value == field.default or (field.name == "top_k" and value == -1) or value in ([], {})
            if not is_neutral:
                raise RequestError(f"{field.name} and {name} exclude one another; leave one of them out", field.name)


def check_length_penalty(penalty: float) -> None:
    """Refuse a length penalty that would make scores infinite.

    Raises:
        RequestError: the penalty is out of its range.
    """
    is_allowed = abs(penalty) <= MAX_LENGTH_PENALTY
    check("length_penalty", penalty, is_allowed, f"from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}")


def arguments_by_plugin(arguments: Mapping[str, Any], plugins: Collection[str]) -> dict[str, Any]:
    """The arguments of each logits processor or sampler, by its name, from a request's `extra_args`.

    A value under a plugin's name is for this plugin. Plain values under other names, as in vLLM, are for the only
    installed plugin, as a dict.

    Raises:
        RequestError: there is no plugin of such a name, or plain values could be for several.
    """
    known = ", ".join(sorted(plugins)) or "none"
    named = {name: value for name, value in arguments.items() if name in plugins}
    others = {name: value for name, value in arguments.items() if name not in plugins}
    for name, value in others.items():
        if isinstance(value, dict):
            raise RequestError(f"there is no logits processor or sampler {name!r}; installed are {known}", "extra_args")
    if not others:
        return named
    if named or len(plugins) != 1:
        text = f"which logits processor or sampler gets {', '.join(others)!s:.80} is not clear; installed are {known}"
        raise RequestError(f'{text}: give its arguments below its name, as {{"name": {{...}}}}', "extra_args")
    return dict.fromkeys(plugins, others)


def _count(name: str, value: object) -> int | None:
    if value is True and name in ("logprobs", "prompt_logprobs"):
        return 1  # as in vLLM
    return None if value is None else integer(name, value)


def _check_tokens(name: str, tokens: Iterable[int]) -> None:
    for token in tokens:
        check(name, token, 0 <= token < 2**31, "token ids, 0 or more")
