"""vLLM's interface to beam search: names, meanings and defaults. Does not search itself; the scheduler does."""

from collections.abc import Callable, Sequence

import msgspec

from pyllm.frontend.text.outputs import CompletionOutput, RequestOutput
from pyllm.parameters.arguments import NamedParameters, NumberReader, check
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.parameters.vllm_parameters import BEAM_SEARCH, refuse_other_values


class BeamSearchParams(msgspec.Struct, metaclass=NamedParameters, frozen=True, forbid_unknown_fields=True):
    """A beam search that keeps and returns `beam_width` sequences of at most `max_tokens` output tokens.

    The best has the highest cumulative log-probability, divided by its length, prompt included, to the power of
    `length_penalty`. `temperature` has no effect here and may only be 0. `include_stop_str_in_output`: the text has the
    stop token at its end. `skip_special_tokens`: it has no special tokens. `structured_outputs`, `watermarking` and
    `allowed_token_ids` are vLLM's, and have one value here.

    Raises:
        RequestError: a value is out of its range; the text has the value and the range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: None = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None
    allowed_token_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _NUMBERS.read(self)
        check("beam_width", self.beam_width, self.beam_width >= 1, "at least 1")
        check("temperature", self.temperature, self.temperature == 0.0, "0, since beams are not drawn")
        refuse_other_values(BEAM_SEARCH, {name: getattr(self, name) for name in BEAM_SEARCH})
        self.sampling()

    def sampling(self) -> SamplingParams:
        """The sampling parameters of the request that does this search."""
        return SamplingParams(
            n=self.beam_width,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            beam_width=self.beam_width,
            length_penalty=self.length_penalty,
        )


_NUMBERS = NumberReader(BeamSearchParams)


class BeamSearchSequence(msgspec.Struct):
    """One of the sequences found.

    `tokens` begin with the prompt's and end with the stop token, if one ended it; `text` is their text. `cum_logprob`
    is the output's.
    """

    tokens: list[int]
    cum_logprob: float
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class BeamSearchOutput(msgspec.Struct):
    """The `beam_width` sequences found for one prompt, the best first."""

    sequences: list[BeamSearchSequence]


Decode = Callable[[Sequence[int]], str]


def beam_search_output(request: RequestOutput, params: BeamSearchParams, decode: Decode) -> BeamSearchOutput:
    """The result of a request with `params.sampling()`; `decode` gives the text of tokens."""
    return BeamSearchOutput([_sequence(request, each, params, decode) for each in request.outputs])


def _sequence(
    request: RequestOutput, found: CompletionOutput, params: BeamSearchParams, decode: Decode
) -> BeamSearchSequence:
    tokens = [*request.prompt_token_ids, *found.token_ids]
    leaves_out_stop = found.finish_reason == "stop" and not params.include_stop_str_in_output
    return BeamSearchSequence(
        tokens=tokens,
        cum_logprob=found.cumulative_logprob or 0.0,
        text=decode(tokens[:-1] if leaves_out_stop else tokens),
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
    )
