"""`LogitsStates` from Python: its buffers, what it knows, and that its edits change logits in vLLM's order."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyllm_kernels import LogitsEdits, LogitsStates
from pyllm_kernels.ops.edit_logits import edit_logits

from tests.kernels.logits_cases import floats, ints
from tests.tiers import cases

VOCABULARY = 40
ZEROS, ONES = np.zeros(VOCABULARY, np.float32), np.ones(VOCABULARY, np.float32)
Floats = npt.NDArray[np.float32]
NOT_SAMPLED, READY, STALE = 0, 1, 2


def known(states: LogitsStates, slot: int, start: int = 0) -> list[int]:
    return np.frombuffer(states.tokens(slot, start), np.int32).tolist()


def catch_up(states: LogitsStates, slot: int, first: int, tokens: list[int], sampled: int | None = None) -> int:
    """One row whose tokens begin at position `first`; `sampled` is the first of them that is sampled, or the last."""
    sampled = len(tokens) - 1 if sampled is None else sampled
    positions = list(range(sampled, len(tokens)))
    (readiness,) = states.catch_up(
        ints(slot),
        ints(0, len(tokens)),
        ints(first + len(tokens)),
        ints(*tokens),
        ints(0, len(positions)),
        ints(*positions),
    )
    return readiness


def edited(states: LogitsStates, slot: int, logits: Floats, drafts: list[int] | None = None) -> Floats:
    """A row of logits as they are after the slot's tokens and some drafts; the same by the reference and by Rust."""
    drafts = drafts or []
    edits = LogitsEdits.from_columns(states.edits(ints(slot), ints(0, len(drafts)), ints(*drafts)))
    expected: npt.NDArray[np.float32] = edit_logits.reference(logits[None], ints(0), edits)
    assert np.array_equal(edit_logits(logits[None], ints(0), edits), expected)
    return expected[0]


# Each rule alone, and what becomes of logits of 1 and -1 after the prompt [3, 5] and the output [5, 5, 9].
def test_presence_is_subtracted_once_from_what_was_put_out() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(3, 5, 5, 5, 9), 2, presence_penalty=0.5)
    changed = ZEROS.copy()
    changed[[5, 9]] = 0.5
    assert np.array_equal(edited(states, 0, ONES), 1 - changed)
    assert np.array_equal(edited(states, 0, -ONES), -1 - changed)


def test_frequency_is_subtracted_each_time() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(3, 5, 5, 5, 9), 2, frequency_penalty=0.25)
    changed = ZEROS.copy()
    changed[[5, 9]] = floats(0.5, 0.25)
    assert np.array_equal(edited(states, 0, ONES), 1 - changed)


def test_repetition_divides_and_multiplies_what_stands_anywhere() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(3, 5, 5, 5, 9), 2, repetition_penalty=2.0)
    factors = ONES.copy()
    factors[[3, 5, 9]] = 2.0
    assert np.array_equal(edited(states, 0, ONES), 1 / factors)
    assert np.array_equal(edited(states, 0, -ONES), -factors)


def test_bias_comes_before_penalties() -> None:
    states = LogitsStates(1, VOCABULARY)
    biases = {"bias_ids": ints(9, 4), "bias_values": floats(3.0, -2.0)}
    states.initialise(0, ints(9), 0, repetition_penalty=2.0, presence_penalty=0.5, **biases)
    logits = edited(states, 0, ONES)
    assert logits[[9, 4, 7]].tolist() == [(1 + 3) / 2 - 0.5, -1.0, 1.0]


def test_bad_words_are_banned_where_the_output_begins_them() -> None:
    states = LogitsStates(1, VOCABULARY)
    words = [ints(7), ints(1, 2), ints(1, 1, 3), ints(5, 4)]
    states.initialise(0, ints(5, 1), 1, bad_words=words)

    def banned(drafts: list[int]) -> list[int]:
        return np.flatnonzero(edited(states, 0, ZEROS, drafts) == -np.inf).tolist()

    assert banned([]) == [2, 7]  # The prompt's 5 and 1 begin nothing.
    assert banned([1]) == [2, 3, 7]
    assert banned([1, 5]) == [4, 7]


def test_stop_tokens_are_banned_until_there_are_min_tokens() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(8, 8, 8), 2, min_tokens=3, stop_token_ids=ints(0, 39))
    for drafts, banned in (([], True), ([1], True), ([1, 2], False)):
        logits = edited(states, 0, ZEROS, drafts)
        assert (np.flatnonzero(logits == -np.inf).tolist() == [0, 39]) is banned
    states.push(ints(0), ints(0, 2), ints(1, 2))
    assert np.array_equal(edited(states, 0, ZEROS), ZEROS)


def test_a_budget_forces_the_end_of_reasoning() -> None:
    states = LogitsStates(1, VOCABULARY)
    markers = {"thinking_starts": [ints(8)], "thinking_ends": [ints(5, 6), ints(7)]}
    states.initialise(0, ints(9, 8, 1), 2, thinking_budget=2, bad_words=[ints(5)], min_tokens=9, **markers)

    def forced(drafts: list[int]) -> list[int]:
        return np.flatnonzero(edited(states, 0, ZEROS, drafts) == np.inf).tolist()

    assert [forced(drafts) for drafts in ([], [1], [5], [1, 5], [1, 5, 6], [7, 1])] == [[], [5], [6], [6], [], []]
    states.push(ints(0), ints(0, 2), ints(1, 5))
    assert forced([]) == [6]
    with pytest.raises(ValueError, match="a start or an end of reasoning has no tokens"):
        states.initialise(0, ints(1), 1, thinking_ends=[ints()])


def test_drafts_count_only_at_their_position() -> None:
    states = LogitsStates(2, VOCABULARY)
    states.initialise(1, ints(3), 1, frequency_penalty=1.0)
    columns = states.edits(ints(1, 1, 0, 1), ints(0, 0, 1, 2, 4), ints(6, 9, 6, 6))
    edits = LogitsEdits.from_columns(columns)
    assert edits.starts.tolist() == [0, 0, 1, 1, 2]
    assert edits.ids.tolist() == [6, 6]
    assert edits.subtracted.tolist() == [1.0, 2.0]
    assert known(states, 1) == [3]


tokens = st.lists(st.integers(0, 7), max_size=12)


@settings(max_examples=cases(200))
@given(
    prompt=tokens,
    output=tokens,
    drafts=st.lists(st.integers(0, 7), max_size=3),
    presence=st.sampled_from([0.0, 0.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.25, 2.0]),
    repetition=st.sampled_from([1.0, 1.5, 0.5]),
    bias=st.dictionaries(st.integers(0, 9), st.sampled_from([-5.0, 1.0]), max_size=3),
    bad_words=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 15),
    seed=st.integers(0, 2**32 - 1),
)
def test_logits_change_in_vllms_order(
    prompt: list[int],
    output: list[int],
    drafts: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
    bad_words: list[list[int]],
    min_tokens: int,
    seed: int,
) -> None:
    states = LogitsStates(1, VOCABULARY)
    half = len(output) // 2
    states.initialise(
        0,
        ints(*prompt, *output[:half]),
        len(prompt),
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        bias_ids=ints(*bias),
        bias_values=floats(*bias.values()),
        bad_words=[ints(*word) for word in bad_words],
        min_tokens=min_tokens,
        stop_token_ids=ints(11, 12),
    )
    states.push(ints(0), ints(0, len(output) - half), ints(*output[half:]))
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)
    there = output + drafts
    expected = logits.copy()
    for word in bad_words:
        if there[len(there) - len(word) + 1 :] == word[:-1] and len(word) <= len(there) + 1:
            expected[word[-1]] = -np.inf
    if len(there) < min_tokens:
        expected[[11, 12]] = -np.inf
    for token, value in bias.items():
        expected[token] += value
    for token in set(prompt + there):
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
    for token in set(there):
        expected[token] -= frequency * there.count(token) + presence
    np.testing.assert_allclose(edited(states, 0, logits, drafts), expected, atol=1e-5, rtol=1.3e-6)


def test_a_row_that_is_told_all_its_tokens_is_ready() -> None:
    states = LogitsStates(2, VOCABULARY)
    assert catch_up(states, 1, 0, [1, 2]) == NOT_SAMPLED  # Plain.
    states.initialise(1, ints(1, 2), 2)
    assert catch_up(states, 1, 0, [1, 2]) == READY
    assert catch_up(states, 1, 1, [2, 3, 4], sampled=1) == READY  # 4 is a draft.
    assert known(states, 1) == [1, 2, 3]


def test_the_last_sampled_token_must_be_known() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(1, 2), 2)
    assert catch_up(states, 0, 2, [-1]) == STALE
    states.push(ints(0), ints(0, 1), ints(7))
    assert catch_up(states, 0, 2, [-1]) == READY
    assert catch_up(states, 0, 3, [-1]) == STALE
    assert known(states, 0) == [1, 2, 7]


def test_a_row_behind_what_is_known_is_stale() -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, ints(1, 2), 2)
    states.push(ints(0), ints(0, 3), ints(7, 8, 9))
    assert catch_up(states, 0, 2, [-1]) == STALE
    assert catch_up(states, 0, 3, [8]) == STALE
    assert catch_up(states, 0, 3, [8, 9]) == READY


def test_a_fork_that_goes_another_way_forgets_the_old_one() -> None:
    states = LogitsStates(2, VOCABULARY)
    states.initialise(0, ints(1, 2), 2, frequency_penalty=1.0)
    states.push(ints(0), ints(0, 2), ints(7, 8))
    states.copy(ints(0, 1))
    assert catch_up(states, 1, 2, [7, 9]) == READY
    assert (known(states, 0), known(states, 1)) == ([1, 2, 7, 8], [1, 2, 7, 9])
    logits = edited(states, 1, ZEROS)
    assert np.flatnonzero(logits).tolist() == [7, 9]


def test_slots_are_cleared_and_copied_by_slot() -> None:
    states = LogitsStates(3, VOCABULARY)
    states.initialise(0, ints(4, 5), 1)
    states.copy(ints(0, 1, 1, 2))
    states.clear(ints(0, 1))
    assert [states.length(slot) for slot in range(3)] == [0, 0, 2]
    assert known(states, 0) == []
    assert known(states, 2, 1) == [5]
    states.copy(ints(0, 2))
    assert states.length(2) == 0


def test_rows_of_a_whole_step() -> None:
    states = LogitsStates(4, VOCABULARY)
    states.initialise(2, ints(1), 1)
    states.initialise(3, ints(2, 3), 2)
    # Of the last row, a part of its prompt, nothing is sampled.
    readiness = states.catch_up(
        ints(0, 2, 1, 3),
        ints(0, 2, 4, 5, 7),
        ints(2, 2, 9, 2),
        ints(9, 9, 1, 6, -1, 2, 3),
        ints(0, 1, 2, 3, 3),
        ints(1, 3, 4),
    )
    assert list(readiness) == [NOT_SAMPLED, READY, NOT_SAMPLED, NOT_SAMPLED]
    assert known(states, 2) == [1, 6]


@pytest.mark.parametrize("tokens", [ints(1, 2), ints(1, 2).tobytes(), memoryview(ints(0, 1, 2))[1:]], ids=type)
def test_tokens_come_in_any_buffer(tokens: npt.NDArray[np.int32] | bytes | memoryview) -> None:
    states = LogitsStates(1, VOCABULARY)
    states.initialise(0, tokens, 0, bias_ids=b"", bias_values=b"", stop_token_ids=b"")
    assert known(states, 0) == [1, 2]


def test_what_does_not_fit_is_refused() -> None:
    states = LogitsStates(1, VOCABULARY)
    with pytest.raises(ValueError, match="elements of format l: give i32 or bytes"):
        states.clear(np.array([0]))
    with pytest.raises(ValueError, match="3 bytes: give a multiple of 4"):
        states.clear(b"abc")
    with pytest.raises(ValueError, match="slot 1: there are 1, from 0 on"):
        states.length(1)
    with pytest.raises(ValueError, match="bias_values has 0 elements: give 1"):
        states.initialise(0, ints(), 0, bias_ids=ints(1))
    states.initialise(0, ints(1), 1)
    with pytest.raises(ValueError, match="slot 0 knows 1 tokens, and a row begins with a later one, at position 3"):
        catch_up(states, 0, 3, [5])
    with pytest.raises(ValueError, match="vocab_size is 0: give 1 to 2,147,483,647"):
        LogitsStates(1, 0)
