"""A step's tokens, from logits that the tests make up: what each parameter does, and what a step tells of it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.wire.messages import Sampled, Sampling
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.grammar.compile_queue import NotNowError
from pyllm.workers.grammar.grammar_compiler import compile_grammar
from pyllm.workers.grammar.token_masks import Grammars
from pyllm.workers.sampling.logprobs import PromptLogprobs
from pyllm.workers.sampling.sampling_slots import SamplingSlots
from pyllm.workers.sampling.token_sampler import PATIENCE, Draw, TokenSampler
from pyllm.workers.step.batch import PlanBuffer
from tests.plans import encode

VOCABULARY = 64
PROMPT = [3, 9, 9, 20]
CPU = HostDevice()

Floats = npt.NDArray[np.float32]


@dataclass
class Row:
    """One row of a step. `tokens` end at `length`; `positions` to sample are one, or one more than there are drafts."""

    slot: int
    tokens: list[int]
    length: int
    logits: list[dict[int, float]]  # of each position, where they are not 0; of several samples of one, one
    samples: int = 1
    uniform: float = 0.5


@dataclass
class Steps:
    """A sampler and the plans for it."""

    vocabulary: int = VOCABULARY
    grammars: Callable[[], Grammars] | None = None
    inits: list[tuple[int, Sampling, list[int], int]] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    number: int = 0
    processed_logprobs: bool = False

    def __post_init__(self) -> None:
        self.slots = SamplingSlots(8, self.vocabulary, self.grammars or no_grammars)
        self.sampler = TokenSampler(self.slots, CPU, processed_logprobs=self.processed_logprobs)

    def start(self, slot: int, sampling: Sampling, prompt: list[int] = PROMPT, output: tuple[int, ...] = ()) -> None:
        self.inits.append((slot, sampling, [*prompt, *output], len(prompt)))

    def draw(self, *rows: Row, prompts: list[PromptLogprobs] | None = None) -> Sampled:
        draw = self.begin(*rows)
        draw.prompts = prompts or []
        return self.sampler.finish(draw)

    def begin(self, *rows: Row) -> Draw:
        """A step that is not waited for, as on a GPU."""
        histories = [history if sampling.is_stateful else [] for _, sampling, history, _ in self.inits]
        encoded = [msgspec.msgpack.encode(sampling) for _, sampling, _, _ in self.inits]
        ends = np.cumsum([0, *(len(row.tokens) for row in rows)])
        logits, logits_rows, origins = [], [], []
        for row, end in zip(rows, ends[1:].tolist(), strict=True):
            for index, position in enumerate(row.logits):
                numbers = np.zeros(self.vocabulary, np.float32)
                numbers[list(position)] = list(position.values())
                logits_rows += [end - len(row.logits) + index] * row.samples
                origins += [len(logits)] * row.samples
                logits.append(numbers)
        counts, frame = encode(
            {
                "tokens": [token for row in rows for token in row.tokens],
                "positions": np.zeros(ends[-1]),
                "slot_mapping": np.zeros(ends[-1]),
                "query_starts": ends,
                "sequence_lengths": [row.length for row in rows],
                "slots": [row.slot for row in rows],
                "logits_rows": logits_rows,
                "sampled_starts": np.cumsum([0, *(len(row.logits) * row.samples for row in rows)]),
                "uniforms": [row.uniform for row in rows for _ in range(len(row.logits) * row.samples)],
                "slot_copies": self.copies,
                "slot_inits": [slot for slot, *_ in self.inits],
                "sampling_starts": np.cumsum([0, *map(len, encoded)]),
                "sampling": np.frombuffer(b"".join(encoded), np.uint8),
                "history_starts": np.cumsum([0, *map(len, histories)]),
                "histories": [token for history in histories for token in history],
                "prompt_lengths": [num_prompt for *_, num_prompt in self.inits],
            }
        )
        self.inits, self.copies = [], []
        batch = PlanBuffer(CPU).load(counts, frame)
        self.sampler.follow(batch)
        _, draw = self.sampler.draw(self.number, batch, np.stack(logits), np.array(origins))
        self.number += 1
        return draw


def no_grammars() -> Grammars:
    raise AssertionError("no grammar was asked for")


def tokens_by_row(sampled: Sampled) -> list[list[int]]:
    starts = np.frombuffer(sampled.starts, np.int32)
    return [part.tolist() for part in np.split(np.frombuffer(sampled.tokens, np.int32), starts[1:-1])]


def first_token(sampling: Sampling, logits: dict[int, float], output: tuple[int, ...] = (), **row: Any) -> int:
    """What a fresh request with some output gets next."""
    steps = Steps()
    steps.start(0, sampling, output=output)
    known = [*PROMPT, *output]
    (tokens,) = tokens_by_row(steps.draw(Row(0, known, len(known), [logits], **row)))
    return tokens[0]


def greedy(**parameters: Any) -> Sampling:
    return Sampling(temperature=0.0, **parameters)


@pytest.mark.parametrize(
    ("sampling", "output", "expected"),
    [
        (greedy(), (9, 9, 7), 9),
        (greedy(presence_penalty=1.5), (), 9),  # nothing is output yet
        (greedy(presence_penalty=1.5), (9, 9, 7), 30),
        (greedy(frequency_penalty=0.4), (9,), 9),
        (greedy(frequency_penalty=0.4), (9, 9, 7), 30),
        (greedy(repetition_penalty=1.2), (), 30),  # the prompt counts
        (greedy(repetition_penalty=1.01), (), 9),
        (greedy(logit_bias={30: 2.0}), (), 30),
        (greedy(logit_bias={9: -2.0}), (), 30),
        (greedy(allowed_token_ids=np.array([40, 50], np.int32).tobytes()), (), 40),
        (greedy(bad_words=(np.array([9], np.int32).tobytes(),)), (), 30),
        (greedy(bad_words=(np.array([7, 9], np.int32).tobytes(),)), (7,), 30),
        (greedy(bad_words=(np.array([7, 9], np.int32).tobytes(),)), (8,), 9),
        (greedy(min_tokens=2, stop_token_ids=np.array([9], np.int32).tobytes()), (5,), 30),
        (greedy(min_tokens=2, stop_token_ids=np.array([9], np.int32).tobytes()), (5, 6), 9),
    ],
)
def test_each_parameter_changes_what_is_likeliest(sampling: Sampling, output: tuple[int, ...], expected: int) -> None:
    assert first_token(sampling, {9: 4.0, 30: 3.5, 40: 1.0}, output) == expected


def test_what_is_drawn_counts_in_the_next_step_and_other_rows_pay_nothing() -> None:
    steps = Steps()
    logits = {5: 2.0, 6: 1.5, 7: 1.2}
    steps.start(0, greedy(presence_penalty=1.0))
    steps.start(1, greedy())
    drawn = [tokens_by_row(steps.draw(Row(0, PROMPT, 4, [logits]), Row(1, [1], 1, [logits])))]
    drawn += [
        tokens_by_row(steps.draw(Row(1, [-1], length, [logits]), Row(0, [-1], length, [logits]))) for length in (5, 6)
    ]
    assert drawn == [[[5], [5]], [[5], [6]], [[5], [7]]]


def test_what_was_not_waited_for_counts_in_the_next_step_but_not_for_who_takes_the_slot() -> None:
    steps = Steps()
    logits = {5: 2.0, 6: 1.5, 7: 1.2}
    steps.start(0, greedy(presence_penalty=1.0))
    first = steps.begin(Row(0, PROMPT, 4, [logits]))
    second = steps.begin(Row(0, [-1], 5, [logits]))
    steps.start(0, greedy(presence_penalty=1.0))
    third = steps.begin(Row(0, PROMPT, 4, [logits]))
    assert [tokens_by_row(steps.sampler.finish(draw)) for draw in (first, second, third)] == [[[5]], [[6]], [[5]]]
    assert steps.slots.known_tokens(0, 0).tolist() == [*PROMPT, 5]


def test_what_waits_in_other_slots_costs_plain_rows_nothing() -> None:
    steps = Steps()
    steps.start(0, greedy(presence_penalty=1.0))
    steps.start(1, greedy())
    assert steps.begin(Row(0, PROMPT, 4, [{5: 1.0}]), Row(1, [1], 1, [{5: 1.0}])).changes is not None
    assert steps.begin(Row(1, [-1], 2, [{5: 1.0}])).changes is None


def test_samples_of_a_fork_share_their_first_logits_and_then_go_their_own_ways() -> None:
    steps = Steps()
    logits = {5: 30.0, 6: 29.9}
    steps.start(0, Sampling(temperature=0.05, presence_penalty=2.0))
    sampled = steps.draw(Row(0, PROMPT, 4, [logits], samples=2))
    assert tokens_by_row(sampled) == [[5, 5]]
    steps.copies = [0, 1]
    # The scheduler says which slot took which token; here as if they had differed.
    rows = Row(0, [5], 5, [logits], uniform=0.01), Row(1, [6], 5, [logits], uniform=0.99)
    assert tokens_by_row(steps.draw(*rows)) == [[6], [5]]


def test_drafts_count_for_what_follows_them_and_are_kept_as_far_as_they_are_drawn() -> None:
    steps = Steps()
    steps.start(0, greedy(presence_penalty=1.0))
    assert tokens_by_row(steps.draw(Row(0, PROMPT, 4, [{5: 2.0}]))) == [[5]]
    logits = {5: 2.0, 6: 1.5, 7: 1.2, 8: 1.1}
    # After 5 comes 6, then 7; the second draft is wrong, and what follows it counts for nothing.
    drafted = steps.draw(Row(0, [5, 6, 9], 7, [logits, logits, logits]))
    assert tokens_by_row(drafted) == [[6, 7]]
    assert tokens_by_row(steps.draw(Row(0, [7], 7, [logits]))) == [[8]]


BOUNDED = Sampling(
    temperature=0.7,
    repetition_penalty=2.0,
    bad_words=(np.array([30], np.int32).tobytes(),),
    thinking_budget=2,
    thinking_starts=(np.array([20], np.int32).tobytes(),),
    thinking_ends=(np.array([30, 31], np.int32).tobytes(),),
)


@pytest.mark.parametrize(
    ("output", "expected"), [((), 5), ((5,), 5), ((5, 5), 30), ((5, 5, 30), 31), ((5, 5, 30, 31), 5), ((5, 30), 31)]
)
def test_reasoning_that_has_used_up_its_budget_ends(output: tuple[int, ...], expected: int) -> None:
    """Whatever else the request excludes, however likely other tokens are, and in every copy of the slot."""
    logits = {5: 90.0, 30: -50.0, 31: -50.0}
    assert first_token(BOUNDED, logits, output) == expected
    steps = Steps()
    steps.start(0, BOUNDED, output=output)
    known = [*PROMPT, *output]
    assert tokens_by_row(steps.draw(Row(0, known, len(known), [logits], samples=2))) == [[expected] * 2]
    steps.copies = [0, 1]
    following = first_token(BOUNDED, logits, (*output, expected))
    rows = [Row(slot, [expected], len(known) + 1, [logits]) for slot in (0, 1)]
    assert tokens_by_row(steps.draw(*rows)) == [[following]] * 2


def test_reasoning_ends_in_the_midst_of_drafts() -> None:
    steps = Steps()
    steps.start(0, msgspec.structs.replace(BOUNDED, temperature=0.0))
    logits = {5: 90.0, 9: 1.0}
    assert tokens_by_row(steps.draw(Row(0, PROMPT, 4, [logits]))) == [[5]]
    assert tokens_by_row(steps.draw(Row(0, [5, 5, 5], 7, [logits] * 3))) == [[5, 30]]
    assert tokens_by_row(steps.draw(Row(0, [30, 31, 5], 9, [logits] * 3))) == [[31, 5, 5]]


def test_a_row_whose_last_token_is_not_known_is_told_nothing() -> None:
    steps = Steps()
    steps.start(0, greedy(presence_penalty=1.0))
    assert tokens_by_row(steps.draw(Row(0, [-1], 6, [{5: 1.0}]))) == [[]]


def test_logprobs_are_those_of_the_model_with_ties_and_ranks() -> None:
    steps = Steps()
    steps.start(0, greedy(logprobs=2, logit_bias={8: 90.0}))
    steps.start(1, greedy())
    steps.start(2, greedy(logprobs=0))
    logits = {5: 2.0, 6: 2.0, 8: 1.0}
    sampled = steps.draw(*(Row(slot, [1], 1 if slot else 4, [logits]) for slot in range(3)))
    assert tokens_by_row(sampled) == [[8], [5], [5]]
    told = sampled.logprobs
    assert told is not None
    log_total = np.log(2 * np.exp(2) + np.e + (VOCABULARY - 3))
    assert np.frombuffer(told.starts, np.int32).tolist() == [0, 3, 3, 4]
    assert np.frombuffer(told.ids, np.int32).tolist() == [8, 5, 6, 5]
    expected = np.array([1.0, 2.0, 2.0, 2.0]) - log_total
    np.testing.assert_allclose(np.frombuffer(told.values, np.float32), expected, rtol=1e-6)
    assert np.frombuffer(told.ranks, np.int32).tolist() == [3, 1, 2, 2]
    assert np.frombuffer(told.prompt_starts, np.int32).tolist() == [0, 0, 0, 0]


def test_processed_logprobs_are_those_of_the_draw() -> None:
    steps = Steps(processed_logprobs=True)
    logits = {5: 2.0, 6: 1.0, 7: 0.5}
    wanted: list[tuple[Sampling, dict[int, float]]] = [
        (Sampling(temperature=1.0, logprobs=2), logits),
        (Sampling(temperature=0.5, logprobs=2), {5: 4.0, 6: 2.0, 7: 1.0}),
        (Sampling(temperature=1.0, logprobs=2, logit_bias={6: 3.0}), logits | {6: 4.0}),
        (Sampling(temperature=0.5, logprobs=2, top_k=2), {5: 4.0, 6: 2.0}),
        (Sampling(temperature=1.0, logprobs=2, min_p=0.3), {5: 2.0, 6: 1.0}),
        (greedy(logprobs=2), logits),
    ]
    for slot, (sampling, _) in enumerate(wanted):
        steps.start(slot, sampling)
    sampled = steps.draw(*(Row(slot, [1], 4, [logits], uniform=0.01) for slot in range(len(wanted))))
    assert sampled.logprobs is not None
    ids = np.frombuffer(sampled.logprobs.ids, np.int32).reshape(-1, 3)
    values = np.frombuffer(sampled.logprobs.values, np.float32).reshape(-1, 3)
    for row, (sampling, expected) in enumerate(wanted):
        numbers = np.full(VOCABULARY, -np.inf if sampling.top_k or sampling.min_p else 0.0)
        numbers[list(expected)] = list(expected.values())
        total = np.log(np.exp(numbers).sum())
        np.testing.assert_allclose(values[row], numbers[ids[row]] - total, rtol=1e-5, err_msg=str(sampling))


@given(st.integers(0, 2**32), st.floats(0.01, 4.0), st.floats(0.05, 1.0), st.floats(0.0, 0.5), st.integers(0, 9))
def test_a_drawn_token_is_never_excluded(seed: int, temperature: float, top_p: float, min_p: float, top_k: int) -> None:
    generator = np.random.default_rng(seed)
    steps = Steps(processed_logprobs=True)
    filters: dict[str, Any] = {"top_p": top_p, "min_p": min_p, "top_k": top_k}
    steps.start(0, Sampling(temperature=temperature, logprobs=0, logit_bias={3: 1.0}, **filters))
    steps.start(1, Sampling(temperature=temperature, logprobs=0, **filters))
    # Few different numbers, so that cuts go through equal ones.
    numbers = dict(enumerate((generator.integers(-3, 3, VOCABULARY) / 4).tolist()))
    uniform = float(generator.random(dtype=np.float32))
    sampled = steps.draw(*(Row(slot, [1], 4, [numbers], uniform=uniform) for slot in range(2)))
    assert sampled.logprobs is not None
    assert np.isfinite(np.frombuffer(sampled.logprobs.values, np.float32)).all()


def test_tokens_that_a_request_names_come_in_place_of_the_likeliest() -> None:
    steps = Steps()
    named = [3, 8, *range(10, 50)]
    steps.start(0, greedy(logprobs=0, logprob_token_ids=np.array(named, np.int32).tobytes(), logit_bias={8: 90.0}))
    steps.start(1, greedy(logprobs=1))
    logits = {5: 2.0, 6: 2.0, 8: 1.0, 3: 0.5}
    steps.draw(Row(0, [1], 4, [logits]), Row(1, [1], 1, [logits]))
    steps.copies = [0, 2]
    # Those of both slots are more than are computed at once.
    sampled = steps.draw(Row(0, [8], 5, [logits]), Row(1, [5], 2, [logits]), Row(2, [8], 5, [logits]))
    told = sampled.logprobs
    assert told is not None
    assert tokens_by_row(sampled) == [[8], [5], [8]]
    assert np.frombuffer(told.starts, np.int32).tolist() == [0, 43, 45, 88]
    assert np.frombuffer(told.ids, np.int32).tolist() == [8, *named, 5, 5, 8, *named]
    log_total = np.log(2 * np.exp(2) + np.e + np.exp(0.5) + (VOCABULARY - 4))
    of_named = [1.0, 0.5, 1.0, *[0.0] * 40]
    expected = np.array([*of_named, 2.0, 2.0, *of_named]) - log_total
    np.testing.assert_allclose(np.frombuffer(told.values, np.float32), expected, rtol=1e-6)
    ranks = [3, 4, 3, *[VOCABULARY] * 40]
    assert np.frombuffer(told.ranks, np.int32).tolist() == [*ranks, 2, 1, *ranks]


def test_prompt_entries_come_before_those_of_their_row() -> None:
    steps = Steps()
    steps.start(0, greedy())
    steps.start(1, greedy(logprobs=0, prompt_logprobs=1))
    part = steps.sampler.prompt_part(np.eye(VOCABULARY, dtype=np.float32)[:2], np.array([0, 7], np.int32), 1)
    prompts = [PromptLogprobs(1, np.array([0, 7], np.int32), (part,))]
    sampled = steps.draw(Row(0, [1], 1, [{4: 1.0}]), Row(1, PROMPT, 4, [{6: 1.0}]), prompts=prompts)
    told = sampled.logprobs
    assert told is not None
    assert np.frombuffer(told.prompt_starts, np.int32).tolist() == [0, 0, 2]
    assert np.frombuffer(told.prompt_tokens, np.int32).tolist() == [0, 7]
    assert np.frombuffer(told.starts, np.int32).tolist() == [0, 0, 2, 4, 5]
    assert np.frombuffer(told.ids, np.int32).tolist() == [0, 0, 7, 1, 6]
    assert np.frombuffer(told.ranks, np.int32).tolist() == [1, 1, VOCABULARY, 1, 1]


def test_a_request_that_excludes_every_token_fails_alone() -> None:
    steps = Steps()
    only = np.array([9], np.int32).tobytes()
    steps.start(0, greedy(allowed_token_ids=only, bad_words=(only,)))
    steps.start(1, greedy())
    sampled = steps.draw(Row(0, PROMPT, 4, [{5: 1.0}]), Row(1, [1], 1, [{5: 1.0}]))
    assert list(sampled.failures) == [0]
    assert "no token is left" in sampled.failures[0]
    assert sampled.faults == ()
    assert tokens_by_row(sampled) == [[], [5]]


def test_logits_that_are_not_numbers_fail_their_request_alone() -> None:
    steps = Steps()
    steps.start(0, greedy())
    steps.start(1, greedy())
    broken = dict.fromkeys(range(VOCABULARY), float("nan"))
    sampled = steps.draw(Row(0, [1], 1, [{5: 1.0}]), Row(1, [1], 1, [broken]))
    assert sampled.failures == {1: "the model's logits are not numbers"}
    assert sampled.faults == (1,)
    assert tokens_by_row(sampled)[0] == [5]


def test_a_preempted_request_goes_on_as_if_it_had_not_been() -> None:
    sampling = greedy(presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.3)
    logits = {token: 3.0 - 0.1 * token for token in range(20)}
    through, resumed = Steps(), Steps()
    through.start(0, sampling)
    output: list[int] = []
    for length in range(4, 24):
        ((token,),) = tokens_by_row(through.draw(Row(0, PROMPT if length == 4 else [-1], length, [logits])))
        resumed.start(3, sampling, output=tuple(output))
        known = [*PROMPT, *output]
        assert tokens_by_row(resumed.draw(Row(3, known, len(known), [logits]))) == [[token]]
        output.append(token)
    assert len(set(output)) > 5


GRAMMAR = 'start: "alpha beta" | "gamma " /[0-9]{2}/'
CHECKPOINT = read_checkpoint()
TOKENS = CHECKPOINT.spec.vocab_size
(END,) = CHECKPOINT.tokenizer.eos_token_ids
LIKES = {token: token / TOKENS for token in range(TOKENS)}  # the higher, the better


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars.load(CHECKPOINT.tokenizer.path, TOKENS, CHECKPOINT.tokenizer.eos_token_ids)
    yield grammars
    grammars.close()


def settle(steps: Steps) -> None:
    """Wait until every grammar is ready, as the forward pass of a large model would."""
    for constraint in steps.slots.constraints.values():
        assert constraint.grammar is not None
        assert constraint.grammar.wait(10)


def draw_when_ready(steps: Steps, *rows: Row) -> list[list[int]]:
    while [] in (drawn := tokens_by_row(steps.draw(*rows))):
        settle(steps)
    return drawn


def written(grammars: Grammars, sampling: Sampling) -> list[list[int]]:
    """What a grammar lets a model write that likes the highest ids best; a list for each step."""
    steps = Steps(TOKENS, lambda: grammars)
    steps.start(0, sampling)
    known, length, document = PROMPT, len(PROMPT), [[-1]]
    while document[-1][-1] != END:
        (known,) = draw_when_ready(steps, Row(0, known, length, [LIKES]))
        length += len(known)
        document.append(known)
    return document[1:]


@pytest.fixture(scope="module")
def document(grammars: Grammars) -> list[int]:
    """The same, a step for each token."""
    return [token for (token,) in written(grammars, greedy(grammar=GRAMMAR, logprobs=0))]


def test_what_a_grammar_forces_comes_at_once(grammars: Grammars, document: list[int]) -> None:
    steps = written(grammars, greedy(grammar=GRAMMAR))
    assert [token for tokens in steps for token in tokens] == document
    assert max(map(len, steps)) > 1


@pytest.mark.parametrize("extra", ["bad_words", "allowed_token_ids", "min_tokens"])
def test_what_a_grammar_forces_comes_step_by_step_where_it_may_be_excluded(
    grammars: Grammars, document: list[int], extra: str
) -> None:
    """Here nothing is, so the document is the same."""
    unused = next(token for token in range(300, 400) if token not in document)
    parameters: dict[str, Any] = {
        "bad_words": (np.array([unused], np.int32).tobytes(),),
        "allowed_token_ids": np.arange(TOKENS, dtype=np.int32).tobytes(),
        "min_tokens": 1,
    }
    steps = written(grammars, greedy(grammar=GRAMMAR, **{extra: parameters[extra]}))
    assert steps == [[token] for token in document]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_forced_token_that_is_excluded_ends_the_request(grammars: Grammars, place: int) -> None:
    """Wherever it is: what the grammar forces is held against what the request excludes, like any token."""
    forced = [token for (token,) in written(grammars, greedy(grammar='start: "Rome and Paris"', logprobs=0))]
    assert len(forced) == 4
    steps = Steps(TOKENS, lambda: grammars)
    steps.start(0, greedy(grammar='start: "Rome and Paris"', bad_words=(np.array(forced[place], np.int32).tobytes(),)))
    known, length, output = PROMPT, len(PROMPT), []
    for _ in forced:
        settle(steps)
        sampled = steps.draw(Row(0, known, length, [LIKES]))
        if sampled.failures:
            break
        (known,) = tokens_by_row(sampled)
        length += len(known)
        output += known
    assert output == forced[:place]
    assert "no token is left" in sampled.failures[0]


def test_a_grammar_goes_on_from_any_place_and_in_every_fork(grammars: Grammars, document: list[int]) -> None:
    for cut, token in enumerate(document[:-1]):
        steps = Steps(TOKENS, lambda: grammars)
        output = document[:cut]
        steps.start(0, greedy(grammar=GRAMMAR, logprobs=0), output=tuple(output))
        length = len(PROMPT) + cut
        row = Row(0, [*PROMPT, *output], length, [LIKES], samples=2)
        assert draw_when_ready(steps, row) == [[token, token]]
        steps.copies = [0, 5]
        both = [Row(slot, [token], length + 1, [LIKES]) for slot in (0, 5)]
        assert draw_when_ready(steps, *both) == [[document[cut + 1]]] * 2


@pytest.mark.parametrize("num_right", [0, 1, 2])
def test_drafts_are_held_against_the_grammar(grammars: Grammars, document: list[int], num_right: int) -> None:
    steps = Steps(TOKENS, lambda: grammars)
    steps.start(0, greedy(grammar=GRAMMAR, logprobs=0), output=(document[0],))
    drafts = [*document[1 : 1 + num_right], 17, 18][:2]
    row = Row(0, [document[0], *drafts], len(PROMPT) + 3, [LIKES] * 3)
    assert draw_when_ready(steps, row) == [document[1 : 2 + num_right]]


class NeverReady:
    """A grammar's row, and its grammars, of which nothing comes; the clock goes on by as much as is waited."""

    error = ""
    is_put_off = False

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        self.now += seconds
        return False


def test_all_rows_that_are_not_ready_share_one_wait() -> None:
    never: Any = NeverReady()
    steps = Steps(grammars=lambda: never)
    steps.sampler = TokenSampler(steps.slots, CPU, clock=lambda: never.now)
    never.begin = lambda text, output: never
    for slot in (0, 1, 2):
        steps.start(slot, greedy(grammar="none"))
    rows = [Row(slot, PROMPT, 4, [{5: 1.0}]) for slot in (0, 1, 2)]
    assert tokens_by_row(steps.draw(*rows)) == [[], [], []]
    assert never.asked == pytest.approx([PATIENCE, 0.0, 0.0])


def test_what_has_begun_waits_for_a_grammar_that_cannot_be_had_now_and_what_comes_fails(document: list[int]) -> None:
    refusals = ["this machine is busy"] * 3

    def compile_later(tokenizer: LLTokenizer, text: str) -> LLMatcher:
        if refusals:
            raise NotNowError(refusals.pop())
        return compile_grammar(tokenizer, text)

    ends = list(CHECKPOINT.tokenizer.eos_token_ids)
    grammars = Grammars(LLTokenizer(CHECKPOINT.tokenizer.path, n_vocab=TOKENS, eos_token=ends), compile_later)
    steps = Steps(TOKENS, lambda: grammars)
    seconds = itertools.count()
    steps.sampler = TokenSampler(steps.slots, CPU, clock=lambda: next(seconds))
    steps.start(0, greedy(grammar=GRAMMAR))
    while not (failures := steps.draw(Row(0, PROMPT, len(PROMPT), [LIKES])).failures):
        settle(steps)
    assert failures == {0: "this machine is busy"}
    steps.start(1, greedy(grammar=GRAMMAR), output=tuple(document[:2]))
    assert draw_when_ready(steps, Row(1, [document[1]], len(PROMPT) + 2, [LIKES]))[0][0] == document[2]
    assert not refusals
    grammars.close()


def test_a_grammar_that_is_none_fails_its_request_alone(grammars: Grammars) -> None:
    steps = Steps(TOKENS, lambda: grammars)
    steps.start(0, greedy(grammar="start: /a{3/"))
    steps.start(1, greedy())
    rows = Row(0, PROMPT, 4, [{5: 1.0}]), Row(1, [1], 1, [{5: 1.0}])
    while not (sampled := steps.draw(*rows)).failures:
        settle(steps)
    assert list(sampled.failures) == [0]
    assert "a{3" in sampled.failures[0]
    assert sampled.parameters == {0: "structured_outputs"}
    assert tokens_by_row(sampled) == [[], [5]]


def broken_processor(arguments: dict[str, Any]) -> Any:
    """A logits processor's factory: what it makes works until the output has one token."""
    del arguments

    def process(prompt: Any, output: Any, logits: Floats) -> Floats:
        del prompt
        logits[: 30 // (1 - len(output))] = float("-inf")
        return logits

    return process


def test_a_processor_changes_what_is_drawn_and_its_failure_is_no_fault_of_the_request() -> None:
    steps = Steps()
    steps.start(0, greedy(allowed_token_ids=np.arange(60, dtype=np.int32).tobytes()))
    steps.start(1, greedy())
    rows = [Row(0, PROMPT, 4, [{5: 2.0, 40: 1.0, 62: 3.0}]), Row(1, [1], 1, [{5: 1.0}])]
    steps.draw(Row(1, [1], 1, [{5: 1.0}]))
    steps.slots.constraints[0].processors = (broken_processor({}),)
    assert tokens_by_row(steps.draw(*rows)) == [[40], [5]]
    sampled = steps.draw(Row(1, [-1], 2, [{5: 1.0}]), Row(0, [-1], 5, [{5: 2.0}]))
    assert list(sampled.failures) == [1]
    assert "ZeroDivisionError" in sampled.failures[1]
    assert sampled.faults == (1,)
    assert tokens_by_row(sampled) == [[5], []]


def test_a_plugin_chooses_the_token_by_what_the_request_allows_and_its_uniform() -> None:
    calls = []

    def draw(prompt: Any, output: Any, logits: Floats, uniform: float) -> int:
        calls.append((prompt.tolist(), output.tolist(), uniform))
        allowed = np.flatnonzero(logits > -np.inf)
        return int(allowed[int(uniform * len(allowed))])

    steps = Steps()
    allowed = np.array([7, 9, 11, 13], np.int32)
    steps.start(0, greedy(allowed_token_ids=allowed.tobytes()))
    steps.start(1, greedy())
    steps.draw(Row(1, [1], 1, [{5: 1.0}]))
    steps.slots.constraints[0].sampler = draw
    sampled = steps.draw(Row(0, PROMPT, 4, [{40: 3.0}]), Row(1, [1], 1, [{5: 1.0}]))
    ((prompt, output, uniform),) = calls
    assert (prompt, output) == (PROMPT, [])
    assert tokens_by_row(sampled) == [[int(allowed[int(uniform * 4)])], [5]]


def test_a_plugin_draws_once_for_each_sample_of_a_fork() -> None:
    uniforms = []

    def draw(prompt: Any, output: Any, logits: Floats, uniform: float) -> int:
        uniforms.append(uniform)
        return 10 + len(uniforms)

    steps = Steps()
    steps.start(0, greedy(allowed_token_ids=np.arange(60, dtype=np.int32).tobytes()))
    steps.start(1, greedy())
    steps.draw(Row(1, [1], 1, [{5: 1.0}]))
    steps.slots.constraints[0].sampler = draw
    assert tokens_by_row(steps.draw(Row(0, PROMPT, 4, [{40: 3.0}], samples=3))) == [[11, 12, 13]]
    assert uniforms == [0.5] * 3


@pytest.mark.parametrize("token", [-1, 5, 1 << 20])
def test_a_plugin_that_chooses_what_is_excluded_fails_its_request_alone(token: int) -> None:
    steps = Steps()
    steps.start(0, greedy(allowed_token_ids=np.array([7], np.int32).tobytes()))
    steps.start(1, greedy())
    steps.draw(Row(1, [1], 1, [{5: 1.0}]))
    steps.slots.constraints[0].sampler = lambda prompt, output, logits, uniform: token
    sampled = steps.draw(Row(0, PROMPT, 4, [{7: 3.0}]), Row(1, [1], 1, [{5: 1.0}]))
    assert list(sampled.failures) == [0]
    assert f"it chose token {token}" in sampled.failures[0]
    assert sampled.faults == (0,)
    assert tokens_by_row(sampled) == [[], [5]]
