"""A machine of the cluster: `pyllm core` with all its processes, and the relay in front of it where it has a host.

Starts, kills and slows them; knows no request and no client.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.cluster.network import Host
from tests.e2e.titles import CORE, WORKER, find

PORT = 5555  # of the relay, at the host's address
INNER_PORT = 5556  # of the core, on the host's loopback
READY = b"pyllm core is ready on"
DEADLINE = 120.0  # seconds that a machine has to become ready, on a processor that others use
END_DEADLINE = 30.0


class Machine:
    """`arguments` are those of `pyllm core`, without the address. Without a `host` it is on this one, at `folder`.

    `environment` is added to ours. What its processes log is in `folder/NAME.log`, and records of its crashes are in
    `folder/NAME-crashes`.
    """

    def __init__(
        self, name: str, host: Host | None, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.host = host
        self.address = f"ipc://{folder}/{name}" if host is None else f"tcp://{host.address}:{PORT}"
        self.log = folder / f"{name}.log"
        self.supervisors: list[int] = []  # process ids, of each start
        self._arguments = [*arguments, "--flight-recorder-dir", str(folder / f"{name}-crashes")]
        self._environment = {**os.environ, **environment}
        self._core: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    @property
    def is_started(self) -> bool:
        """Whether its supervisor lives."""
        return self._core is not None and self._core.poll() is None

    def start(self) -> None:
        """Start all of it, without waiting."""
        bind = self.address if self.host is None else f"tcp://127.0.0.1:{INNER_PORT}"
        with self.log.open("a") as log:
            log.write("-- the machine starts --\n")
            log.flush()
            self._core = subprocess.Popen(
                self._on_host(sys.executable, "-m", "pyllm", "core", *self._arguments, "--bind", bind),
                stdout=subprocess.PIPE,  # for the one line that says that it is ready
                stderr=log,
                env=self._environment,
            )
            self.supervisors.append(self._core.pid)
            if self.host is not None:
                ends = f"{self.host.address}:{PORT}", f"127.0.0.1:{INNER_PORT}"
                command = self._on_host(sys.executable, "-m", "tests.cluster.relay", *ends)
                self._relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        """Block until its core is ready, once after a start.

        Raises:
            RuntimeError: it ended, or is not ready in time; the text has the end of its log.
        """
        assert self._core is not None
        assert self._core.stdout is not None
        said, _, _ = select.select([self._core.stdout], [], [], DEADLINE)
        if not said or not self._core.stdout.readline().startswith(READY):
            raise RuntimeError(f"{self.name} is not ready: {self.log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """SIGKILL every process at once; the supervisor first, so that it replaces none."""
        for process in self._popens():
            tree = [psutil.Process(process.pid)] if process.poll() is None else []
            tree += [child for parent in tree for child in parent.children(recursive=True)]
            for member in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGSTOP)  # Nothing can be started between two kills.
            for member in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._close_relay()

    def stop(self) -> int:
        """SIGTERM to the supervisor; gives the exit code of its orderly end."""
        assert self._core is not None
        if self._core.poll() is None:
            self._core.terminate()
        try:
            code = self._core.wait(END_DEADLINE)
        finally:
            self.kill()
        return code

    def kill_core(self) -> bool:
        """SIGKILL its EngineCore process, which the supervisor replaces. False: there is none just now."""
        return self._kill_titled(CORE)

    def kill_worker(self) -> bool:
        """SIGKILL its worker, which the core replaces. False: there is none just now."""
        return self._kill_titled(WORKER)

    def slow_down(self, delay: float) -> None:
        """Delay all that goes in and out by so many seconds; 0 ends it."""
        if self._relay is not None and self._relay.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # It was killed meanwhile.
                self._relay.stdin.write(f"{delay}\n".encode())
                self._relay.stdin.flush()

    def _on_host(self, *words: str) -> list[str]:
        return list(words) if self.host is None else self.host.command(*words)

    def _popens(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in (self._core, self._relay) if process is not None]

    def _kill_titled(self, title: str) -> bool:
        if not self.is_started or self._core is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            found = find(self._core.pid, title)
            for process in found:
                process.kill()
            return bool(found)
        return False

    def _close_relay(self) -> None:
        if self._relay is not None and self._relay.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._relay.stdin.close()
        self._relay = None
