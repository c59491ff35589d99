"""Which grammar is compiled when: each once, short ones first, and none that nobody wants or that has waited long."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import RequestError
from pyllm.workers.grammar.compile_queue import (
    BYTES_PER_SECOND,
    MAX_HANDICAP,
    NUM_KEPT,
    WAIT_SECONDS,
    CompileQueue,
    NotNowError,
)
from pyllm.workers.grammar.grammar_compiler import compile_grammar
from pyllm.workers.grammar.schema_limits import MAX_OTHER_BYTES

PATIENT = 60.0


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    checkpoint = read_checkpoint()
    return LLTokenizer(checkpoint.tokenizer.path, n_vocab=checkpoint.spec.vocab_size, eos_token=[2])


def compiled(made: list[str], tokenizer: LLTokenizer) -> Callable[[str], LLMatcher]:
    def compile_one(text: str) -> LLMatcher:
        made.append(text)
        return compile_grammar(tokenizer, text)

    return compile_one


def one_of(number: int) -> str:
    return "start: CHOICE\nCHOICE: " + " | ".join(f'"choice number {index}"' for index in range(number))


def commented(number: int, size: int) -> str:
    """A grammar of some bytes that is compiled at once."""
    return f'start: "{number}" // '.ljust(size, "x")


def finish(queue: CompileQueue, text: str) -> LLMatcher:
    compilation = queue.compile(text)  # To be held until it is done.
    return compilation.future.result(PATIENT)


def test_the_grammars_used_last_are_kept(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    queue = CompileQueue(compiled(made, tokenizer))
    first, second, *others = (f'start: "{number}"' for number in range(NUM_KEPT + 1))
    for text in (first, second, *others[:-1], first, others[-1]):
        finish(queue, text)
    assert made == [first, second, *others]
    finish(queue, first)
    assert len(made) == NUM_KEPT + 1
    finish(queue, second)
    assert made[-1] == second
    queue.close()


def test_an_error_is_kept_as_well(tokenizer: LLTokenizer) -> None:
    made: list[str] = []
    queue = CompileQueue(compiled(made, tokenizer))
    for _ in range(2):
        with pytest.raises(RequestError, match="the grammar does not compile"):
            finish(queue, "start: nothing")
    assert len(made) == 1
    queue.close()


def test_a_grammar_is_copied_while_another_is_compiled(tokenizer: LLTokenizer) -> None:
    """The copies are made of what the other thread made, while that thread is in the library."""
    go_on = threading.Semaphore(1)

    def compile_one(text: str) -> LLMatcher:
        assert go_on.acquire(timeout=PATIENT)
        return compile_grammar(tokenizer, text)

    queue = CompileQueue(compile_one)
    original = finish(queue, one_of(500))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(original.deep_copy(), mask)
    for number in range(10):
        other = queue.compile(one_of(1000 + number))
        assert not other.future.done()
        go_on.release()
        is_compiled = False
        while not is_compiled:
            is_compiled = other.future.done()
            copied = allocate_token_bitmask(1, tokenizer.vocab_size)
            fill_next_token_bitmask(original.deep_copy(), copied)
            assert (copied == mask).all()
    queue.close()


def test_deep_grammars_do_not_end_the_process(tokenizer: LLTokenizer) -> None:
    links = {str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(1000)}
    queue = CompileQueue(lambda text: compile_grammar(tokenizer, text))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    for text in (
        LLMatcher.grammar_from_json_schema(json.dumps({"$ref": "#/$defs/0", "$defs": links | {"1000": {}}})),
        "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000)) + '\na15000: "y"',
    ):
        fill_next_token_bitmask(finish(queue, text).deep_copy(), mask)
        assert 0 < np.bitwise_count(mask).sum() < 20
    queue.close()


class Stuck:
    """Compiles nothing until a test lets it, and remembers what it was asked for."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.asked: list[str] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> LLMatcher:
        self.asked.append(text)
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENT)
        return compile_grammar(self._tokenizer, text)


def test_short_texts_go_first_but_long_ones_do_not_wait_for_ever(tokenizer: LLTokenizer) -> None:
    stuck, now = Stuck(tokenizer), [0.0]
    queue = CompileQueue(stuck, lambda: now[0])
    running = queue.compile('start: "running"')
    assert stuck.begun.acquire(timeout=PATIENT)
    long, longest = (commented(number, size) for number, size in enumerate((2 * BYTES_PER_SECOND, MAX_OTHER_BYTES)))
    held = [queue.compile(text) for text in (longest, long, 'start: "short"')]
    for now[0], text in ((1.9, 'start: "soon"'), (2.1, 'start: "later"'), (MAX_HANDICAP + 0.1, 'start: "last"')):
        held.append(queue.compile(text))
    stuck.go_on.release(7)
    for compilation in (running, *held):
        assert not compilation.future.result(PATIENT).is_error()
    shorts = [f'start: "{word}"' for word in ("running", "short", "soon", "later", "last")]
    assert stuck.asked == [*shorts[:3], long, shorts[3], longest, shorts[4]]


def test_what_has_waited_too_long_is_refused_and_may_be_asked_for_again(tokenizer: LLTokenizer) -> None:
    stuck, now = Stuck(tokenizer), [0.0]
    queue = CompileQueue(stuck, lambda: now[0])
    running = queue.compile('start: "running"')
    assert stuck.begun.acquire(timeout=PATIENT)
    late = queue.compile('start: "late"')
    now[0] = WAIT_SECONDS - 1
    in_time = queue.compile('start: "in time"')
    now[0] = WAIT_SECONDS + 1
    stuck.go_on.release(4)
    with pytest.raises(NotNowError, match="waited 30 s while others were compiled; try again later"):
        late.future.result(PATIENT)
    assert not running.future.result(PATIENT).is_error()  # What is being compiled does not wait any more.
    assert not in_time.future.result(PATIENT).is_error()
    assert not finish(queue, 'start: "late"').is_error()


def test_what_was_refused_for_a_reason_not_its_own_is_tried_again() -> None:
    made: list[str] = []

    def compile_one(text: str) -> LLMatcher:
        made.append(text)
        raise NotNowError("try again later")

    queue = CompileQueue(compile_one)
    refused = [queue.compile("text")]
    for _ in range(2):
        with pytest.raises(NotNowError):
            refused[-1].future.result(PATIENT)
        for thread in threading.enumerate():
            if thread.name == "compile-grammars":
                thread.join(PATIENT)
        refused.append(queue.compile("text"))
    with pytest.raises(NotNowError):
        refused[-1].future.result(PATIENT)
    assert len(made) == 3


def test_what_waits_is_compiled_once_however_much_is_compiled_meanwhile(tokenizer: LLTokenizer) -> None:
    stuck = Stuck(tokenizer)
    queue = CompileQueue(stuck)
    texts = [f'start: "{number}"' for number in range(NUM_KEPT + 2)]
    waiting = [queue.compile(text) for text in texts]
    assert [queue.compile(text) for text in texts] == waiting
    stuck.go_on.release(len(texts))
    assert waiting[-1].future.result(PATIENT)
    assert stuck.asked == texts
    queue.close()


def test_a_thread_that_cannot_be_started_fails_the_grammar_alone() -> None:
    program = """
import resource, threading
from pathlib import Path
from pyllm.workers.grammar.compile_queue import CompileQueue
queue = CompileQueue(lambda text: text)
stack_size, limits = threading.stack_size(), resource.getrlimit(resource.RLIMIT_AS)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), limits[1]))  # No room for the thread's stack.
refused = queue.compile("text")
resource.setrlimit(resource.RLIMIT_AS, limits)
print(refused.future.exception(0))
assert threading.stack_size() == stack_size
compiled = queue.compile("text")
print(compiled.future.result(60))
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT, capture_output=True, text=True)
    assert re.fullmatch(r"no thread could be started to compile .*; try again later\ntext\n", ran.stdout)


def test_a_stuck_grammar_lets_its_process_end() -> None:
    program = """
import threading
from pyllm.workers.grammar.compile_queue import CompileQueue
begun = threading.Event()
def compile_one(text):
    begun.set()
    threading.Event().wait()
compilation = CompileQueue(compile_one).compile("")
begun.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT)
