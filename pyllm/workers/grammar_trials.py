"""Compiles a grammar in a process of its own before this one does: what costs too much there ends that process alone.

It is two: one has read the tokenizer, and forks another that compiles as often as that one ends. No thread is in the
first, so a fork is safe, and takes 5 ms where a new interpreter takes 500. Knows no queue, no cache and no rows.
"""

import ctypes
import os
import resource
import select
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
from pyllm.workers.grammar_compiler import STACK_BYTES, NotNowError
from pyllm.workers.grammar_matcher import error_text, make_matcher
from pyllm.workers.grammar_sizes import check_schemas

# Seconds of processor time that one grammar may take: whatever else the machine does, it is refused or it is not.
# llguidance counts its work but not all of it: 2,000 terminals of which each leads to the next take minutes.
COMPILE_SECONDS = 3.0
# Bytes that it may take beside its stack and the tokenizer. The largest that the limits allow take some 60 MB.
MEMORY_BYTES = 512 << 20
# Seconds that are waited for an answer, on a machine that has no time for it.
PATIENCE = 15.0
# A process that has ever held this much more than at its beginning makes room for another.
_RENEW_BYTES = 64 << 20
_RENEWED = 3  # an exit code
_PR_SET_PDEATHSIG = 1


class TrialConfig(msgspec.Struct, frozen=True):
    """What the process is told at its start: how to read the tokenizer, and its limits in seconds and bytes."""

    tokenizer_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    seconds: float = COMPILE_SECONDS
    memory_bytes: int = MEMORY_BYTES


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What became of a text."""

    error: str = ""  # why it is refused
    is_final: bool = True  # False: the error has nothing to do with it
    is_schema: bool = False


class GrammarTrials:
    """Compiles grammars for one thread. Its process is started at the first one, and again where it has ended.

    The process ends with this object, with the interpreter, and, by the end of its connection, with this process.
    """

    def __init__(self, config: TrialConfig) -> None:
        self._config = config
        self._running: list[tuple[subprocess.Popen[bytes], Connection]] = []  # one, or none
        self._end = weakref.finalize(self, _end, self._running)

    def compile(self, tokenizer: LLTokenizer, text: str) -> LLMatcher:
        """Compile a grammar that has been compiled elsewhere, within the limits.

        Raises:
            RequestError: it was not.
            NotNowError: it was not, for a reason that is not its own.
        """
        verdict = self._try(text)
        if verdict.error:
            raise RequestError(verdict.error)
        return make_matcher(tokenizer, text, verdict.is_schema)

    def processes(self) -> list[int]:
        """The process ids: of the one that forks, and of what it has forked; none where none was started."""
        if not self._running:
            return []
        pid = self._running[0][0].pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def close(self) -> None:
        """End the processes, and compile no more."""
        self._end()

    def _try(self, text: str) -> Verdict:
        reason = ""
        for _ in range(2):  # Processes may end by no fault of the text, even before they read it.
            try:
                verdict = self._ask(text)
                if verdict.is_final:
                    return verdict
                reason = verdict.error
            except (EOFError, OSError) as error:
                reason = f"the process that tries grammars has ended: {error}"
            _end(self._running)  # The text may lie there still.
        raise NotNowError(f"{reason}; try again later")

    def _ask(self, text: str) -> Verdict:
        connection = self._connection()
        while connection.poll():
            connection.recv_bytes()  # It tells of an end while there was nothing to do.
        connection.send_bytes(text.encode())
        if not connection.poll(PATIENCE):
            _end(self._running)
            raise NotNowError(
                f"the grammar was not compiled within {PATIENCE:g} s, as this machine is busy; try again later"
            )
        return msgspec.msgpack.decode(connection.recv_bytes(), type=Verdict)

    def _connection(self) -> Connection:
        """To the process, which may only just begin."""
        if not self._end.alive:
            raise EOFError("no more grammars are compiled")
        if self._running and self._running[0][0].poll() is not None:
            _end(self._running)
        if not self._running:
            config = msgspec.json.encode(self._config)
            ours, theirs = Pipe()
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-m", "pyllm.workers.grammar_trials", str(theirs.fileno()), config],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C in a terminal is not for it.
                )
            self._running.append((process, ours))
        return self._running[0][1]


def _end(running: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
    while running:
        process, connection = running.pop()
        connection.close()
        process.kill()
        process.wait()


def main(descriptor: str, encoded: str) -> None:
    """The process that forks: the number of its connection's descriptor, and its `TrialConfig` as JSON."""
    config = msgspec.json.decode(encoded, type=TrialConfig)
    setproctitle("pyllm::grammars")
    connection = Connection(int(descriptor))
    tokenizer = LLTokenizer(config.tokenizer_path, n_vocab=config.vocab_size, eos_token=list(config.eos_token_ids))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None)  # Before the fork, as it takes a while.
    code = _RENEWED
    while code and connection.poll(None):
        pid = os.fork()
        if pid == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _compile_all(connection, tokenizer, config)
        code = _wait_for(pid, connection)
        if code not in (0, _RENEWED):
            connection.send_bytes(msgspec.msgpack.encode(_verdict_on_end(code, config)))


def _wait_for(pid: int, connection: Connection) -> int:
    """The forked process's exit code; 0 where nobody is at the other end any more, for which it is not waited."""
    process = os.pidfd_open(pid)
    watched = select.poll()
    watched.register(process, select.POLLIN)
    watched.register(connection.fileno(), select.POLLRDHUP)
    ready = {descriptor for descriptor, _ in watched.poll()}
    os.close(process)
    if connection.fileno() in ready:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _verdict_on_end(code: int, config: TrialConfig) -> Verdict:
    if code == -signal.SIGPROF:
        return Verdict(f"the grammar was not compiled within {config.seconds:g} s of processor time; make it simpler")
    if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
        name = signal.Signals(-code).name
        return Verdict(
            f"compiling the grammar ended its process ({name}), as where more than {config.memory_bytes >> 20} MiB are "
            f"needed or where it is nested too deeply; make it simpler"
        )
    return Verdict(f"the process that tries grammars has ended with code {code}", is_final=False)


def _compile_all(connection: Connection, tokenizer: LLTokenizer, config: TrialConfig) -> None:
    """The forked process: it ends here."""
    # What a failing library writes there is told to nobody.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + STACK_BYTES + config.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: os._exit(_answer_all(connection, tokenizer, config.seconds)))
    thread.start()
    thread.join()


def _answer_all(connection: Connection, tokenizer: LLTokenizer, seconds: float) -> int:
    most = _peak_bytes() + _RENEW_BYTES
    while _peak_bytes() < most:
        try:
            text = connection.recv_bytes().decode()
        except (EOFError, OSError):
            return 0
        signal.setitimer(signal.ITIMER_PROF, seconds)  # Its signal ends the process.
        verdict = _answer(tokenizer, text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(msgspec.msgpack.encode(verdict))
    return _RENEWED


def _answer(tokenizer: LLTokenizer, text: str) -> Verdict:
    try:
        is_schema = check_schemas(text)
        matcher = make_matcher(tokenizer, text, is_schema)
        # Some reach a limit with their first mask, and long before: each request would have to find that out.
        matcher.compute_bitmask()
        if matcher.is_error():
            return Verdict(f"the grammar fails before its first token: {error_text(matcher)}")
    except RequestError as error:
        return Verdict(str(error))
    except BaseException as error:  # noqa: BLE001 - whatever the library raises, it is the text's fault
        return Verdict(f"the grammar does not compile: {type(error).__name__}: {error}"[:500])
    return Verdict(is_schema=is_schema)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
