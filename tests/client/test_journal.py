"""The journal drops what it has, notices what is missing, and can be sent again."""

from array import array

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyllm.client.journal import Journal
from pyllm.wire.messages import CLEARING_TOKENS, Output, Sampling, Submit

FIRST = Submit(epoch=0, request=0, prompt=b"\1\0\0\0", seed=9, max_tokens=8, sampling=Sampling(), n=2)


def test_a_fresh_request_is_sent_without_outputs() -> None:
    submit = Journal(FIRST, arrival=10.0).submission(epoch=3, request=5, now=12.5)
    assert (submit.epoch, submit.request, submit.seed, submit.outputs, submit.age) == (3, 5, 9, (), 2.5)


def test_a_resubmission_carries_every_samples_tokens() -> None:
    journal = Journal(FIRST, arrival=0.0)
    assert journal.accept(0, 0, [4, 5]) == [4, 5]
    journal.close(1)
    outputs = journal.submission(epoch=4, request=6, now=0.0).outputs
    assert outputs == (Output(array("i", [4, 5]).tobytes(), False), Output(b"", True))


def test_a_resubmission_has_what_is_left_of_the_timeout() -> None:
    first = msgspec.structs.replace(FIRST, timeout=10.0, ttft_target=1.0, tpot_target=0.1, priority=2, tenant="acme")
    journal = Journal(first, arrival=100.0)
    sent = [journal.submission(1, 1, now) for now in (100.0, 104.0, 130.0)]
    assert [(submit.age, submit.timeout) for submit in sent] == [(0.0, 10.0), (4.0, 6.0), (30.0, 0.0)]
    again = sent[-1]
    assert (again.ttft_target, again.tpot_target, again.priority, again.tenant) == (1.0, 0.1, 2, "acme")


def test_cores_that_are_lost_count_until_enough_has_come_from_one() -> None:
    journal = Journal(FIRST, arrival=0.0)
    enough = CLEARING_TOKENS * FIRST.n
    counts = []
    for progress in (
        lambda: None,
        lambda: journal.accept(1, 0, [7]),
        lambda: journal.isolate("alone"),
        lambda: journal.accept(1, 1, [7] * (enough - 1)),
        lambda: journal.accept(0, 0, [7] * enough),
    ):
        progress()
        journal.lose_core()
        counts.append((journal.submission(1, 1, 0.0).num_losses, journal.num_losses_alone))
    assert counts == [(1, 0), (2, 0), (3, 1), (4, 1), (1, 0)]


def test_samples_that_are_done_need_give_no_more() -> None:
    journal = Journal(FIRST, arrival=0.0)
    journal.close(0)
    journal.lose_core()
    journal.accept(1, 0, [7] * CLEARING_TOKENS)
    assert journal.submission(1, 1, 0.0).num_losses == 0


def test_a_core_that_gave_enough_and_is_asked_again_is_told_of_no_losses() -> None:
    journal = Journal(FIRST, arrival=0.0)
    journal.lose_core()
    losses = []
    for progress in ([], [7], [7] * CLEARING_TOKENS * FIRST.n):
        journal.accept(1, 0, progress)
        losses.append(journal.submission(1, 1, 0.0).num_losses)
    assert losses == [1, 1, 0]


def test_one_that_got_past_its_steps_alone_has_ended_no_core_alone() -> None:
    journal = Journal(FIRST, arrival=0.0)
    for _ in range(2):
        journal.isolate("alone")
        journal.lose_core()
    journal.isolate("alone")
    journal.isolate("over")
    assert (journal.num_losses, journal.num_losses_alone) == (2, 0)


def test_a_gap_enters_nothing() -> None:
    journal = Journal(FIRST, arrival=0.0)
    assert journal.accept(1, 1, [7]) is None
    assert journal.submission(1, 1, 0.0).outputs == ()


@given(
    tokens=st.lists(st.integers(0, 99), max_size=20),
    cuts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20),
)
def test_repeated_and_overlapping_deltas_give_each_token_once(tokens: list[int], cuts: list[tuple[int, int]]) -> None:
    journal = Journal(FIRST, arrival=0.0)
    heard: list[int] = []
    for start, end in [*cuts, (0, len(tokens))]:
        fresh = journal.accept(0, start, tokens[start:end])
        if fresh is None:
            assert start > len(heard)
        else:
            heard += fresh
    assert heard == tokens
    journal.close(1)
    assert array("i", journal.submission(1, 1, 0.0).outputs[0].tokens).tolist() == tokens


def asking_of_prompt(length: int, n: int = 1) -> Journal:
    first = msgspec.structs.replace(FIRST, prompt=bytes(4 * length), sampling=Sampling(prompt_logprobs=0), n=n)
    return Journal(first, arrival=0.0)


@given(length=st.integers(1, 12), rows=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=20))
def test_each_of_the_prompts_tokens_but_the_first_is_told_once(length: int, rows: list[tuple[int, int]]) -> None:
    journal = asking_of_prompt(length)
    told: list[int] = []
    for start, count in [*rows, (1, length)]:
        end = min(start + count, length)
        if start >= length:
            continue
        num_fresh = journal.accept_prompt(length - start, end - start)
        if num_fresh is None:
            assert start > len(told) + 1
        else:
            told += range(end - num_fresh, end)
    assert told == list(range(1, length))


def test_output_comes_after_what_the_prompt_has_to_tell() -> None:
    journal = asking_of_prompt(3, n=2)
    assert journal.accept(0, 0, [5]) is None
    assert journal.accept(0, 0, []) == []
    assert journal.accept(1, 0, [6]) == [6]
    assert journal.accept_prompt(2, 2) == 2
    assert journal.accept(0, 0, [5]) == [5]


def test_a_prompt_that_was_told_is_not_asked_for_again() -> None:
    journal = asking_of_prompt(3)
    asked = [journal.submission(1, 1, 0.0).sampling.prompt_logprobs]
    for num_left in (2, 1):
        journal.accept_prompt(num_left, 1)
        asked.append(journal.submission(1, 1, 0.0).sampling.prompt_logprobs)
    assert asked == [0, 0, None]
    assert asking_of_prompt(1).submission(1, 1, 0.0).sampling.prompt_logprobs is None


def test_nothing_is_heard_of_a_prompt_that_nobody_asked_for() -> None:
    assert Journal(FIRST, arrival=0.0).accept_prompt(1, 1) == 0
