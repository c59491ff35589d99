"""Grammars that are tried in another process: its limits, its end, and its replacement."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import RequestError
from pyllm.workers.grammar.compile_queue import NotNowError, settle
from pyllm.workers.grammar.trial_process import GrammarTrials, TrialConfig
from tests.tiny_model import write_tiny_model

PATIENT = 60.0
# Each terminal is made of the next one twice: llguidance takes minutes, and stops at none of its limits.
BOMB = "start: T0\n" + "".join(f'T{i}: T{i + 1} | T{i + 1} "b"\n' for i in range(3000)) + 'T3000: "a"\n'
LARGE = "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000)) + '\na15000: "y"'


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLTokenizer, TrialConfig]:
    checkpoint = read_checkpoint(write_tiny_model(tmp_path_factory.mktemp("tiny")))
    path, ends = checkpoint.tokenizer.path, checkpoint.tokenizer.eos_token_ids
    vocab_size = checkpoint.spec.vocab_size
    return LLTokenizer(path, n_vocab=vocab_size, eos_token=list(ends)), TrialConfig(path, vocab_size, ends, 0.5)


@pytest.fixture(scope="module")
def shared(tiny: tuple[LLTokenizer, TrialConfig]) -> Iterator[GrammarTrials]:
    trials = GrammarTrials(tiny[1])
    yield trials
    trials.close()


Compile = Callable[[str], LLMatcher]


@pytest.fixture
def compile_one(shared: GrammarTrials, tiny: tuple[LLTokenizer, TrialConfig]) -> Compile:
    return lambda text: shared.compile(tiny[0], text)


def pidfd_of(trials: GrammarTrials) -> int:
    assert trials.pid is not None
    return os.pidfd_open(trials.pid)


def wait_for_end(pidfd: int) -> None:
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    assert ended.poll(PATIENT * 1000)
    os.close(pidfd)


def test_what_compiles_there_compiles_here(compile_one: Compile) -> None:
    assert not compile_one('start: "a" | /[0-9]+/').is_error()
    schema = {"type": "object", "properties": {f"field_{number}": {} for number in range(500)}}
    assert not compile_one(LLMatcher.grammar_from_json_schema(json.dumps(schema))).is_error()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start: nothing", "the grammar does not compile: .*nothing"),
        ('start: %json {"multipleOf": 9999991}', "multipleOf 9999991 would have more than"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_told(compile_one: Compile, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        compile_one(text)


def test_what_has_no_first_mask_is_told() -> None:
    checkpoint = read_checkpoint()
    path, ends = checkpoint.tokenizer.path, checkpoint.tokenizer.eos_token_ids
    vocab_size = checkpoint.spec.vocab_size
    trials = GrammarTrials(TrialConfig(path, vocab_size, ends))
    with pytest.raises(RequestError, match=r"fails before its first token: .*Too many items"):
        trials.compile(
            LLTokenizer(path, n_vocab=vocab_size, eos_token=list(ends)), "start: " + " ".join(['"a"?'] * 2400)
        )
    trials.close()


def test_what_takes_too_long_is_refused_and_the_next_is_compiled(shared: GrammarTrials, compile_one: Compile) -> None:
    compile_one('start: "before"')
    for _ in range(2):
        with pytest.raises(RequestError, match=r"was not compiled within 0\.5 s of processor time; make it simpler"):
            compile_one(BOMB)
        assert not compile_one('start: "after"').is_error()


def test_a_process_that_grew_makes_room_for_another(shared: GrammarTrials, compile_one: Compile) -> None:
    compile_one('start: "before"')
    pidfd = pidfd_of(shared)
    with pytest.raises(RequestError):
        compile_one("start: " + "a" * (1 << 26))
    wait_for_end(pidfd)
    assert not compile_one('start: "after"').is_error()


def test_memory_is_limited(tiny: tuple[LLTokenizer, TrialConfig]) -> None:
    tokenizer, config = tiny
    trials = GrammarTrials(msgspec.structs.replace(config, seconds=30.0, memory_bytes=16 << 20))
    assert not trials.compile(tokenizer, 'start: "a"').is_error()
    with pytest.raises(RequestError, match=r"emory|MiB") as refused:
        trials.compile(tokenizer, LARGE)
    assert not isinstance(refused.value, NotNowError)
    assert not trials.compile(tokenizer, 'start: "a"').is_error()
    trials.close()


def test_a_process_that_has_ended_is_replaced(shared: GrammarTrials, compile_one: Compile) -> None:
    compile_one('start: "before"')
    pidfd = pidfd_of(shared)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    wait_for_end(pidfd)
    assert not compile_one('start: "after"').is_error()


def is_running(pid: int) -> bool:
    return any(b") R " in (task / "stat").read_bytes() for task in Path(f"/proc/{pid}/task").iterdir())


def test_what_was_being_tried_when_its_process_was_ended_is_tried_again(
    tiny: tuple[LLTokenizer, TrialConfig],
) -> None:
    tokenizer, config = tiny
    trials = GrammarTrials(msgspec.structs.replace(config, seconds=0.5))
    trials.compile(tokenizer, 'start: "before"')
    before = trials.pid
    assert before is not None
    tried = Future[LLMatcher]()
    thread = threading.Thread(target=settle, args=(tried, lambda: trials.compile(tokenizer, BOMB)))
    thread.start()
    while not is_running(before):
        pass  # Until it is at it.
    os.kill(before, signal.SIGKILL)
    with pytest.raises(RequestError, match=r"within 0\.5 s of processor time"):
        tried.result(PATIENT)
    thread.join()
    assert trials.pid != before
    trials.close()


def test_where_no_process_can_be_started_a_grammar_may_be_asked_for_again(
    tiny: tuple[LLTokenizer, TrialConfig], tmp_path: Path
) -> None:
    trials = GrammarTrials(msgspec.structs.replace(tiny[1], tokenizer_path=str(tmp_path / "nowhere.json")))
    with pytest.raises(NotNowError, match=r"the process that tries grammars has ended.*; try again later"):
        trials.compile(tiny[0], 'start: "a"')
    trials.close()
    assert trials.pid is None
    with pytest.raises(NotNowError, match="no more grammars are compiled"):
        trials.compile(tiny[0], 'start: "a"')


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_process_ends_with_its_parent(tiny: tuple[LLTokenizer, TrialConfig], is_busy: bool) -> None:
    config = tiny[1]
    program = f"""
from llguidance import LLTokenizer
from pyllm.workers.grammar.trial_process import GrammarTrials, TrialConfig
config = TrialConfig({config.tokenizer_path!r}, {config.vocab_size}, {config.eos_token_ids}, 1000)
tokenizer = LLTokenizer(config.tokenizer_path, n_vocab=config.vocab_size, eos_token=list(config.eos_token_ids))
trials = GrammarTrials(config)
trials.compile(tokenizer, 'start: "a"')
print(trials.pid, flush=True)
trials.compile(tokenizer, {BOMB if is_busy else "start: nothing"!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if is_busy:
            while not is_running(pid):
                pass  # Until it is at it.
            parent.kill()
        with contextlib.suppress(ProcessLookupError):  # It has ended already.
            wait_for_end(os.pidfd_open(pid))
