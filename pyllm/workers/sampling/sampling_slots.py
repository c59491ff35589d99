"""The sampling parameters and the sampling state of each slot of `workers/step/slots.py`.

A slot whose request edits no logits only has a row in a few tables. Knows no requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from pyllm_kernels import LogitsStates

from pyllm.config.plugins import LOGITS_PROCESSORS, SAMPLERS, offered_names
from pyllm.errors import ConfigError, ProtocolError
from pyllm.parameters.sampling_params import arguments_by_plugin
from pyllm.wire.messages import Sampling
from pyllm.workers.sampling.pooling import POOLING_CODES
from pyllm.workers.sampling.sampler import SamplingRows
from pyllm.workers.sampling.sampling_plugins import LogitsProcessor, SamplerPlugin, load_logits_processor, load_sampler
from pyllm.workers.step.batch import Batch, gather

if TYPE_CHECKING:  # llguidance is loaded with the first grammar, or in a pause.
    from pyllm.workers.grammar.token_masks import GrammarRow, Grammars, Mask

Ints = npt.NDArray[np.int32]

_NONE = np.zeros(0, np.int32)


@dataclass(slots=True)
class Constraint:
    """The constraints of a slot beyond numeric parameters: a grammar, allowed tokens, plugins, or the failure."""

    grammar_text: str = ""
    grammar: "GrammarRow | None" = None
    num_prompt_tokens: int = 0
    num_consumed: int = 0  # tokens, with the prompt, that the grammar has consumed
    last_consumed: int = -1
    retry_at: float = 0.0  # on the sampler's clock, if the grammar is put off
    may_jump: bool = False  # whether forced tokens may skip their own steps
    allowed: "Mask | None" = None
    processors: tuple[LogitsProcessor, ...] = ()
    sampler: SamplerPlugin | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with log-probabilities for its tokens, and for `num_top` other tokens beside each."""

    tokens: Ints
    num_top: int


class SamplingSlots:
    """The tables of all slots. `grammars()` is called at the first grammar; it may raise a ConfigError.

    A rank that does not sample (`grammars` is None) keeps only the state that all ranks need.
    """

    def __init__(self, num_slots: int, vocab_size: int, grammars: "Callable[[], Grammars] | None") -> None:
        self.states = LogitsStates(num_slots, vocab_size)
        self.changes_logits = np.zeros(num_slots, bool)
        self.has_state = np.zeros(num_slots, bool)  # like `changes_logits`, on the rank that samples
        self.num_logprobs = np.full(num_slots, -1, np.int32)
        self.logprob_tokens: dict[int, Ints] = {}  # extra tokens to score, by slot
        self.is_constrained = np.zeros(num_slots, bool)
        self.pooling = np.zeros(num_slots, np.int8)
        self.constraints: dict[int, Constraint] = {}
        self.prompts: dict[int, Prompt] = {}
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._decoder = msgspec.msgpack.Decoder(Sampling)

    @cached_property
    def _sampler_names(self) -> frozenset[str]:
        return offered_names(SAMPLERS)

    @cached_property
    def _plugin_names(self) -> frozenset[str]:
        return offered_names(LOGITS_PROCESSORS, SAMPLERS)

    def rows(self, slots: Ints) -> SamplingRows:
        """The parameters of some slots."""
        tables = (self._temperature, self._top_k, self._top_p, self._min_p)
        return SamplingRows(*(table[slots] for table in tables))

    def known_tokens(self, slot: int, start: int) -> Ints:
        """A stateful slot's tokens from position `start` on, prompt and output."""
        return np.frombuffer(self.states.tokens(slot, start), np.int32)

    def apply(self, batch: Batch) -> None:
        """Apply the plan before its forward pass: slot copies, then initialisations.

        Raises:
            ProtocolError: sampling parameters that do not decode.
        """
        host = batch.host
        if len(host.slot_copies):
            self._copy(host.slot_copies)
        if len(host.slot_inits):
            self._initialise(batch)

    def grammars(self) -> "Grammars":
        """The compiler of grammars.

        Raises:
            ConfigError: the model cannot have grammars.
        """
        assert self._grammars is not None, "this rank does not sample"
        return self._grammars()

    def begin_grammar(self, constraint: Constraint, history: Ints) -> None:
        """Begin a slot's grammar and advance it by the slot's output.

        Raises:
            ConfigError: the model cannot have grammars.
        """
        output = history[constraint.num_prompt_tokens :].tolist()
        constraint.grammar = self.grammars().begin(constraint.grammar_text, output)
        constraint.num_consumed = len(history)
        constraint.last_consumed = int(history[-1])

    def _initialise(self, batch: Batch) -> None:
        host = batch.host
        content, starts = host.sampling.tobytes(), host.sampling_starts.tolist()
        for index, slot in enumerate(host.slot_inits.tolist()):
            try:
                sampling = self._decoder.decode(content[starts[index] : starts[index + 1]])
            except msgspec.DecodeError as error:
                raise ProtocolError(f"the sampling parameters of slot {slot} do not decode: {error}") from error
            self._temperature[slot] = sampling.temperature
            self._top_k[slot] = max(sampling.top_k, 0)
            self._top_p[slot] = sampling.top_p
            self._min_p[slot] = sampling.min_p
            self.changes_logits[slot] = sampling.changes_logits
            self.num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
            self._name(slot, _ints(sampling.logprob_token_ids))
            self.prompts.pop(slot, None)
            self.pooling[slot] = POOLING_CODES[sampling.pooling]
            if self.has_state[slot]:
                self._forget(slot)
            if not sampling.is_stateful:
                continue
            history = host.histories[host.history_starts[index] : host.history_starts[index + 1]].copy()
            num_prompt_tokens = int(host.prompt_lengths[index])
            if sampling.prompt_logprobs is not None:
                self.prompts[slot] = Prompt(history[:num_prompt_tokens], sampling.prompt_logprobs)
            if sampling.changes_logits and self._grammars is not None:
                self._begin(slot, sampling, history, num_prompt_tokens)

    def _name(self, slot: int, tokens: Ints) -> None:
        self.logprob_tokens.pop(slot, None)
        if len(tokens):
            self.logprob_tokens[slot] = tokens

    def _forget(self, slot: int) -> None:
        self.has_state[slot] = self.is_constrained[slot] = False
        self.states.clear(np.array([slot], np.int32))
        self.constraints.pop(slot, None)

    def _begin(self, slot: int, sampling: Sampling, history: Ints, num_prompt_tokens: int) -> None:
        constraint = self._constraint(sampling, history, num_prompt_tokens)
        try:
            self.states.initialise(
                slot,
                history,
                num_prompt_tokens,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                bias_ids=np.array(list(sampling.logit_bias), np.int32),
                bias_values=np.array(list(sampling.logit_bias.values()), np.float32),
                bad_words=[_ints(word) for word in sampling.bad_words],
                min_tokens=sampling.min_tokens,
                stop_token_ids=_ints(sampling.stop_token_ids),
                thinking_budget=sampling.thinking_budget,
                thinking_starts=[_ints(start) for start in sampling.thinking_starts],
                thinking_ends=[_ints(end) for end in sampling.thinking_ends],
            )
        except ValueError as error:
            self.states.initialise(slot, history, num_prompt_tokens)
            constraint.failure = constraint.failure or str(error)
        self.has_state[slot] = True
        if sampling.grammar or sampling.allowed_token_ids or sampling.extra_args or constraint.failure:
            self.constraints[slot] = constraint
            self.is_constrained[slot] = True

    def _constraint(self, sampling: Sampling, history: Ints, num_prompt_tokens: int) -> Constraint:
        constraint = Constraint(
            sampling.grammar, num_prompt_tokens=num_prompt_tokens, may_jump=not _needs_every_step(sampling)
        )
        if sampling.allowed_token_ids:
            constraint.allowed = _mask(_ints(sampling.allowed_token_ids), self._vocab_size)
        try:
            given = sampling.extra_args
            by_plugin = arguments_by_plugin(given, self._plugin_names) if given else {}
            samplers = by_plugin.keys() & self._sampler_names if given else set()
            if len(samplers) > 1:
                raise ConfigError(f"a request has one sampler, and extra_args name {' and '.join(sorted(samplers))}")
            constraint.processors = tuple(
                load_logits_processor(name, arguments) for name, arguments in by_plugin.items() if name not in samplers
            )
            for name in samplers:
                constraint.sampler = load_sampler(name, by_plugin[name])
            if sampling.grammar:
                self.begin_grammar(constraint, history)
        except Exception as error:  # noqa: BLE001 - an error in another package ends this request only
            constraint.failure = str(error)
        return constraint

    def _copy(self, pairs: Ints) -> None:
        """Copy slots, with all pairs as one gather; the result equals copies in the order of the pairs."""
        parameters = (self._temperature, self._top_k, self._top_p, self._min_p)
        tables = (*parameters, self.num_logprobs, self.changes_logits)
        sources, destinations = gather(pairs)
        any_state = bool(self.has_state.any())  # including the former requests of destinations
        for table in (*tables, self.has_state, self.is_constrained, self.pooling):
            table[destinations] = table[sources]
        named = [self.logprob_tokens.get(slot, _NONE) for slot in sources.tolist()]
        for destination, tokens in zip(destinations.tolist(), named, strict=True):
            self.prompts.pop(destination, None)  # The former request may have ended within its prompt.
            self._name(destination, tokens)
        if not any_state:
            return
        self.states.copy(pairs)
        constraints = {slot: self.constraints.get(slot) for slot in sources.tolist()}
        for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
            self.constraints.pop(destination, None)
            if (constraint := constraints[source]) is not None:
                self.constraints[destination] = self._fork(constraint)

    def _fork(self, constraint: Constraint) -> Constraint:
        if constraint.grammar is None:
            return replace(constraint)
        return replace(constraint, grammar=self.grammars().fork(constraint.grammar))


def _needs_every_step(sampling: Sampling) -> bool:
    """Whether forced tokens need their own steps: they may be excluded, or need log-probabilities."""
    excludes = sampling.bad_words or sampling.allowed_token_ids or sampling.extra_args or sampling.min_tokens
    return bool(excludes) or sampling.logprobs is not None


def _ints(packed: bytes) -> Ints:
    return np.frombuffer(packed, np.int32)


def _mask(tokens: Ints, vocab_size: int) -> "Mask":
    bits = np.zeros(-(-vocab_size // 32) * 32, bool)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view(np.int32)[None]
