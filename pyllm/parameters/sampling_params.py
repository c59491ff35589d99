"""`SamplingParams`: the checked sampling parameters of a request. Knows neither the wire nor the model's limits."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter, is_
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pyllm.errors import Field, RequestError
from pyllm.parameters import vllm_parameters
from pyllm.parameters.arguments import (
    NamedParameters,
    NumberReader,
    RangeChecks,
    as_list,
    check,
    declared,
    instance,
    integer,
    mapping,
    number,
    refuse,
    text,
    texts,
    token_ids,
)
from pyllm.parameters.structured_outputs_params import StructuredOutputsParams

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
MAX_LOGIT_BIAS_CHARACTERS = 4096  # of all texts together; the event loop encodes them in 1 ms
MAX_EXTRA_ARGS_BYTES = 1 << 16  # They travel with every start of the request, preemptions included.

# A positive temperature or top_p below it is taken for it, which changes no choice: workers have float32.
LEAST_POSITIVE = 1e-30

AT_LEAST_ONE_OR_ALL = "at least 1, or -1 for no limit"
_INT32 = 2**31
_DEFAULT = "; default: the model's own"

# The parameters: the type, range and text of each. The structs of the APIs use them, too, as does the OpenAPI document.
N = Annotated[int, declared("Answers for each prompt; at most --max-num-seqs.", ge=1, le=MAX_SAMPLES)]
Temperature = Annotated[
    float, declared(f"0 takes the likeliest token, higher ones are more random{_DEFAULT}.", ge=0.0, le=100.0)
]
TopP = Annotated[
    float, declared(f"Draw from the likeliest tokens that have this probability together{_DEFAULT}.", gt=0.0, le=1.0)
]
TopK = Annotated[
    int,
    declared(
        f"Draw from so many of the likeliest tokens; 0 and -1: all{_DEFAULT}.",
        "-1 or 0 (off), or positive and below 2**31",
        ge=-1,
        le=_INT32 - 1,
    ),
]
MinP = Annotated[
    float, declared(f"Draw from tokens with this share of the likeliest one's probability{_DEFAULT}.", ge=0.0, le=1.0)
]
PresencePenalty = Annotated[float, declared("Taken from the logits of tokens that the answer has.", ge=-2.0, le=2.0)]
FrequencyPenalty = Annotated[
    float, declared("Taken from a token's logit for each time that the answer has it.", ge=-2.0, le=2.0)
]
# Workers have float32: what comes of it there is still finite and above 0.
RepetitionPenalty = Annotated[
    float, declared(f"Divides logits of tokens that prompt or answer have; 1: none{_DEFAULT}.", ge=0.01, le=100.0)
]
# Either way; the scheduler has float64, which holds the power of any length.
LengthPenalty = Annotated[
    float,
    declared("Of beam search: the power of the length that divides a beam's log-probability.", ge=-10.0, le=10.0),
]
BeamWidth = Annotated[int, declared("The number of beams.", "0 (no beam search) or more", ge=0)]
# msgspec's bounds are of 64 bits with a sign, so `validate` has this one's.
Seed = Annotated[
    int,
    Meta(
        description="Repeats a random answer; -1: a random one.",
        extra_json_schema={"minimum": -(2**63), "maximum": 2**64 - 1},
    ),
]
LogitBias = Annotated[
    dict[str, float | bool],
    Meta(
        description="What is added to the logits of tokens, by their ids or texts; beyond "
        f"{MAX_LOGIT_BIAS:g} it counts as that, and false bans."
    ),
]
AllowedTokenIds = Annotated[list[int], Meta(description="Only these tokens can be chosen.")]
BadWords = Annotated[list[str], Meta(description=f"Texts that the answer does not have; at most {MAX_BAD_WORDS}.")]
# Of the HTTP APIs; in `SamplingParams` no limit is None.
MaxTokens = Annotated[
    int,
    declared(
        "Most tokens of the answer; without it, or with -1, as many as the context has room for.",
        AT_LEAST_ONE_OR_ALL,
        ge=-1,
    ),
]
MinTokens = Annotated[int, declared("Least tokens before the answer may end.", ge=0, le=_INT32 - 1)]
StopTokenIds = Annotated[list[int], Meta(description="Tokens that end the answer.")]
IgnoreEos = Annotated[bool, Meta(description="Go on behind the model's end-of-sequence tokens.")]
IncludeStopStr = Annotated[bool, Meta(description="Leave the stop text in the answer.")]
SkipSpecialTokens = Annotated[bool, Meta(description="Leave special tokens out of the text; the default.")]
_LOGPROBS = "0 or more, -1 for the whole vocabulary, or left out"
Logprobs = Annotated[
    int, declared("So many of the likeliest tokens, with log-probabilities; -1: all.", _LOGPROBS, ge=-1)
]
PromptLogprobs = Annotated[
    int,
    declared("So many of the likeliest tokens at each token of the prompt; -1: all; not streamed.", _LOGPROBS, ge=-1),
]
LogprobTokenIds = Annotated[
    list[int],
    Meta(description=f"With logprobs: tokens that come in place of the likeliest; at most {MAX_LOGPROB_TOKEN_IDS}."),
]
ThinkingTokenBudget = Annotated[
    int,
    declared(
        "Most tokens of reasoning, whose end is forced then; -1 is no limit.",
        "0 or more, or -1 for no limit",
        ge=-1,
        le=_INT32 - 1,
    ),
]
TruncatePromptTokens = Annotated[
    int,
    declared("Cut a prompt to so many tokens; -1: to what the context has room for.", "at least 1, or -1", ge=-1),
]
StreamInterval = Annotated[int, declared("Tokens between two outputs.", ge=1)]

_FIXED = vllm_parameters.SAMPLING
_SEQUENCES = ("bad_words_token_ids", "reasoning_start_token_ids", "reasoning_end_token_ids")
_MOST_WORDS = {"bad_words": MAX_BAD_WORDS, **dict.fromkeys(_SEQUENCES, MAX_BAD_WORDS_TOKENS)}
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
    They are those of the model, which nothing here changes, or with the engine's `logprobs_mode` "processed_logprobs"
    those of the draw.

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

    n: N = 1
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    seed: Seed | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: MinTokens = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    structured_outputs: StructuredOutputsParams | None = None
    extra_args: dict[str, Any] | None = None
    beam_width: BeamWidth = 0
    length_penalty: LengthPenalty = 1.0
    thinking_token_budget: ThinkingTokenBudget | None = None
    reasoning_start_token_ids: Sequence[Sequence[int]] = ()
    reasoning_end_token_ids: Sequence[Sequence[int]] = ()
    truncate_prompt_tokens: TruncatePromptTokens | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: StreamInterval | None = None
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
        _RANGES.check(self)
        if self.seed == -1:
            self.seed = None
        if self.seed is not None:
            check("seed", self.seed, -(2**63) <= self.seed < 2**64, "a 64-bit integer")
        self._check_logits_changes()
        self._check_ends()
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
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:
                setattr(self, name, 1)  # as in vLLM
        _NUMBERS.read(self)
        self._read_lists()
        if self.structured_outputs is not None:
            instance("structured_outputs", self.structured_outputs, StructuredOutputsParams)
        for name in () if self.extra_args is None else mapping("extra_args", self.extra_args):
            text("extra_args", name)
        instance("output_kind", self.output_kind, RequestOutputKind)
        if not all(map(is_, _FIXED_OF(self), _FIXED_DEFAULTS)):
            vllm_parameters.refuse_other_values(_FIXED, dict(zip(_FIXED, _FIXED_OF(self), strict=True)))

    def _read_lists(self) -> None:
        for name in ("stop", "bad_words", "stop_token_ids", *_SEQUENCES):
            if getattr(self, name) is None:
                setattr(self, name, ())
        for name, given in zip(_LISTS, _LISTS_OF(self), strict=True):
            if given is not None and given is not _EMPTY:  # as most are
                setattr(self, name, _LISTS[name](name, given))

    def _check_outputs(self) -> None:
        if (kept := self.truncate_prompt_tokens) is not None:
            check("truncate_prompt_tokens", kept, kept != 0, "at least 1, or -1")
        if not self.detokenize and self.stop:
            raise RequestError("stop strings are found in text: leave detokenize out, or stop", "stop")

    def _check_logits_changes(self) -> None:
        if self.logit_bias:
            num_biases = len(self.logit_bias)
            check("logit_bias", num_biases, num_biases <= MAX_LOGIT_BIASES, f"at most {MAX_LOGIT_BIASES} tokens")
            _check_tokens("logit_bias", self.logit_bias)
        if self.allowed_token_ids is not None:
            check("allowed_token_ids", "none", len(self.allowed_token_ids) > 0, "left out, or at least one token id")
            _check_tokens("allowed_token_ids", self.allowed_token_ids)
        for name, most in _MOST_WORDS.items():
            if words := getattr(self, name):
                check(name, len(words), len(words) <= most, f"at most {most}")
                if not all(words):
                    raise RequestError(f"{name} must not contain an empty one", name)
        if self.bad_words:
            num_characters = sum(map(len, self.bad_words))
            allowed = f"at most {MAX_BAD_WORD_CHARACTERS} characters together"
            check("bad_words", num_characters, num_characters <= MAX_BAD_WORD_CHARACTERS, allowed)
        for name in _SEQUENCES:
            for tokens in getattr(self, name):
                _check_tokens(name, tokens)
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if self.thinking_token_budget is not None:
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
            allowed = ("at most ", Field("max_tokens"), f", {self.max_tokens}")
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
        if self.beam_width:
            check("n", self.n, self.n == self.beam_width, f"the beam_width, {self.beam_width}, as many as come out")
            self._exclude("beam_width", _NOT_WITH_BEAMS)
        elif self.length_penalty != 1.0:
            text = ("length_penalty is for beam search: set ", Field("beam_width"), ", or leave it out")
            raise RequestError(text, "length_penalty")

    def _exclude(self, name: str, others: Collection[str]) -> None:
        """Refuse each of `others` that has an effect, as it excludes the parameter `name`."""
        for field in msgspec.structs.fields(self):
            if field.name not in others:
                continue
            value = getattr(self, field.name)
            is_neutral = value == field.default or (field.name == "top_k" and value == -1) or value in ([], {})
            if not is_neutral:
                text = (Field(field.name), " and ", Field(name), " exclude one another; leave one of them out")
                raise RequestError(text, field.name)


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


def _check_tokens(name: str, tokens: Iterable[int]) -> None:
    for token in tokens:
        check(name, token, 0 <= token < 2**31, "token ids, 0 or more")


def _texts_or_text(name: str, value: object) -> object:
    return value if isinstance(value, str) else texts(name, value)


def _token_lists(name: str, value: object) -> list[Sequence[int]]:
    lists = as_list(value)
    if not isinstance(lists, list | tuple):
        refuse(name, lists, "a list of lists of token ids")
    return [token_ids(name, each) for each in lists]


def _biases(name: str, value: object) -> dict[int, float]:
    return {integer(name, token): number(name, bias) for token, bias in mapping(name, value).items()}


# The function that reads each list.
_LISTS: dict[str, Callable[[str, object], object]] = {
    "stop": _texts_or_text,
    "bad_words": texts,
    "logit_bias": _biases,
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "logprob_token_ids"), token_ids),
    **dict.fromkeys(_SEQUENCES, _token_lists),
}
_LISTS_OF, _EMPTY = attrgetter(*_LISTS), ()
_NUMBERS = NumberReader(SamplingParams, _FIXED)
_FIXED_OF, _FIXED_DEFAULTS = attrgetter(*_FIXED), tuple(parameter.values[0] for parameter in _FIXED.values())
_RANGES = RangeChecks(SamplingParams)
