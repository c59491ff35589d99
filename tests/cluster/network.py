"""Hosts as network namespaces: each has a link to one bridge, which can be cut. Needs root and iproute2.

The bridge has a namespace of its own, so that nothing of this machine's own network changes. Knows no process.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pyllm.errors import ConfigError

SUBNET = "10.77.0"
MAX_HOSTS = 200
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


class Host:
    """One namespace with one link."""

    def __init__(self, namespace: str, address: str, switch: str, port: str) -> None:
        self.namespace = namespace
        self.address = address
        self._switch = switch
        self._port = port  # the end of its link at the bridge

    def command(self, *words: str) -> list[str]:
        """The command that runs these words on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def cut(self) -> None:
        """Pull the plug: what is sent is lost, and neither side learns of it."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def mend(self) -> None:
        """Undo `cut`; may be called when nothing was cut."""
        _ip("-n", self._switch, "link", "set", self._port, "up")

    def enter(self) -> None:
        """Move this thread here, and all threads and processes that it starts from now on."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(_NAMESPACES / self.namespace) as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {self.namespace}")


class Network:
    """Hosts by name, which exist until the `with` block ends.

    Raises:
        ConfigError: namespaces cannot be made here, or too many are asked for; the text says why.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if os.geteuid() or not shutil.which("ip"):
            raise ConfigError("network namespaces need root and the program `ip` (package iproute2)")
        if len(names) > MAX_HOSTS:
            raise ConfigError(f"{len(names)} hosts: at most {MAX_HOSTS}; lower --machines")
        run = f"pyllm-{os.getpid()}"
        self._switch = f"{run}-switch"
        self.hosts = {
            name: Host(f"{run}-{name}", f"{SUBNET}.{number}", self._switch, f"port{number}")
            for number, name in enumerate(names, 1)
        }

    def __enter__(self) -> "Network":
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts.values(), 1):
            inside, port = ("-n", host.namespace), f"port{number}"
            _ip("netns", "add", host.namespace)
            _ip(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            _ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for namespace in [*(host.namespace for host in self.hosts.values()), self._switch]:
            if (_NAMESPACES / namespace).exists():
                _ip("netns", "delete", namespace)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
