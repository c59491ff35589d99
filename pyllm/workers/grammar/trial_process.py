"""Compiles a grammar in another process first, so that a grammar that costs too much ends only that process.

One process serves one trial after another, within limits of time and memory. Knows no queue, no cache and no rows.
"""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer
from setproctitle import setproctitle

from pyllm.errors import RequestError
from pyllm.workers.grammar.compile_queue import STACK_BYTES, NotNowError
from pyllm.workers.grammar.grammar_compiler import error_text, make_matcher
from pyllm.workers.grammar.schema_limits import check_schemas

# Seconds of processor time for one grammar. Unlike wall time, this limit does not depend on the machine's load.
# llguidance limits its own work, but not all of it: 2,000 terminals in a chain take minutes.
COMPILE_SECONDS = 3.0
# Bytes for one grammar, beside the stack and the tokenizer. The largest within the limits takes some 60 MB.
MEMORY_BYTES = 512 << 20
# Seconds to wait for an answer, for machines that are too busy for the trial.
PATIENCE = 15.0
# A process whose peak memory exceeds that of its start by this much is replaced.
_RENEW_BYTES = 64 << 20


class TrialConfig(msgspec.Struct, frozen=True):
    """The tokenizer of the trial process, and its limits in seconds and bytes."""

    tokenizer_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    seconds: float = COMPILE_SECONDS
    memory_bytes: int = MEMORY_BYTES


class TrialResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a trial. An empty `error` means that the grammar compiles."""

    error: str = ""
    is_schema: bool = False


class GrammarTrials:
    """Compiles grammars for one thread. The process starts at the first grammar, and again whenever it has ended.

    The process ends with this object, with the interpreter, and, as its connection closes, with this process.
    """

    def __init__(self, config: TrialConfig) -> None:
        self._config = config
        self._running: list[tuple[subprocess.Popen[bytes], Connection]] = []  # one, or none
        self._end = weakref.finalize(self, _end, self._running)

    @property
    def pid(self) -> int | None:
        """The id of the process; None if there is none."""
        return self._running[0][0].pid if self._running else None

    def compile(self, tokenizer: LLTokenizer, text: str) -> LLMatcher:
        """Compile a grammar that the process has compiled within the limits.

        Raises:
            RequestError: the grammar is wrong, or exceeds a limit.
            NotNowError: the grammar was not tried, for a reason outside of it.
        """
        for _ in range(2):
            verdict = self._try(text)
            if isinstance(verdict, int):
                _end(self._running)
                if error := _limit_error(verdict, self._config):
                    raise RequestError(error)
            elif verdict.error:
                raise RequestError(verdict.error)
            else:
                return make_matcher(tokenizer, text, verdict.is_schema)
        raise NotNowError(f"the process that tries grammars has ended with code {verdict}; try again later")

    def close(self) -> None:
        """End the process; later calls of `compile` fail."""
        self._end()

    def _try(self, text: str) -> TrialResult | int:
        """The result of a trial, or the exit code of the process that ended during it."""
        process, connection = self._connect()
        try:
            connection.send_bytes(text.encode())
            if connection.poll(PATIENCE):
                return msgspec.msgpack.decode(connection.recv_bytes(), type=TrialResult)
        except (EOFError, OSError):
            return process.wait()
        _end(self._running)
        raise NotNowError(f"this machine is too busy to compile the grammar within {PATIENCE:g} s; try again later")

    def _connect(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """The process and the connection to it. The process may still be starting."""
        if not self._end.alive:
            raise NotNowError("no more grammars are compiled")
        if self._running and self._running[0][0].poll() is not None:
            _end(self._running)
        if not self._running:
            config = msgspec.json.encode(self._config)
            try:
                ours, theirs = Pipe()
                with theirs:
                    module = ("-P", "-m", "pyllm.workers.grammar.trial_process")
                    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                        [sys.executable, *module, str(theirs.fileno()), config],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        process_group=0,  # Ctrl-C in a terminal must not reach it.
                    )
            except OSError as error:
                raise NotNowError(f"cannot start the process that tries grammars: {error}; try again later") from None
            self._running.append((process, ours))
        return self._running[0]


def _end(running: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
    while running:
        process, connection = running.pop()
        connection.close()
        process.kill()
        process.wait()


def _limit_error(code: int, config: TrialConfig) -> str:
    """The error of a grammar whose process ended with this exit code; empty if it is not the grammar's fault."""
    if code == -signal.SIGPROF:
        return f"the grammar was not compiled within {config.seconds:g} s of processor time; make it simpler"
    if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
        return (
            f"compiling the grammar ended its process ({signal.Signals(-code).name}): it may need more than "
            f"{config.memory_bytes >> 20} MiB, or be nested too deeply; make it simpler"
        )
    return ""


def main(descriptor: str, encoded: str) -> None:
    """Run the process; the arguments are its connection's file descriptor and its `TrialConfig` as JSON."""
    config = msgspec.json.decode(encoded, type=TrialConfig)
    setproctitle("pyllm::grammars")
    connection = Connection(int(descriptor))
    tokenizer = LLTokenizer(config.tokenizer_path, n_vocab=config.vocab_size, eos_token=list(config.eos_token_ids))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Hide the output of a library that crashes.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + STACK_BYTES + config.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=_answer_all, args=(connection, tokenizer, config.seconds)).start()


def _answer_all(connection: Connection, tokenizer: LLTokenizer, seconds: float) -> None:
    most = _peak_bytes() + _RENEW_BYTES
    while _peak_bytes() < most:
        try:
            text = connection.recv_bytes().decode()
        except (EOFError, OSError):
            break
        # Two signals end the process during a trial: one at its limit of time, one when the connection closes.
        fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
        if connection.poll():  # closed before O_ASYNC was set
            break
        signal.setitimer(signal.ITIMER_PROF, seconds)
        verdict = _answer(tokenizer, text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        fcntl.fcntl(connection, fcntl.F_SETFL, 0)
        connection.send_bytes(msgspec.msgpack.encode(verdict))


def _answer(tokenizer: LLTokenizer, text: str) -> TrialResult:
    try:
        is_schema = check_schemas(text)
        matcher = make_matcher(tokenizer, text, is_schema)
        # Some grammars reach a limit at their first mask. Find this here, once, and not in each request.
        matcher.compute_bitmask()
        if matcher.is_error():
            return TrialResult(f"the grammar fails before its first token: {error_text(matcher)}")
    except RequestError as error:
        return TrialResult(str(error))
    except BaseException as error:  # noqa: BLE001 - whatever the library raises, it is the text's fault
        return TrialResult(f"the grammar does not compile: {type(error).__name__}: {error}"[:500])
    return TrialResult(is_schema=is_schema)


def _peak_bytes() -> int:
    # Not `ru_maxrss`, which begins at the peak of the process that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
