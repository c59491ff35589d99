"""What a server holds, counted from outside: processes, descriptors, sockets, segments of shared memory."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

SEGMENTS = Path("/dev/shm")


class Census(NamedTuple):
    """A server at rest. Descriptors and sockets are of each process, by its id."""

    titles: dict[int, str]
    descriptors: dict[int, int]
    sockets: dict[int, int]
    files: frozenset[str]  # in the private folder
    segments: frozenset[str]
    zombies: int


def take(supervisor: int) -> Census:
    """Count now."""
    titles, descriptors, sockets, zombies, folders = {}, {}, {}, 0, set()
    root = psutil.Process(supervisor)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            if process.status() == psutil.STATUS_ZOMBIE:
                zombies += 1
                continue
            links = list(_links(process.pid))
            folders |= {str(Path(link).parent) for link in links if link.endswith("/lock") and "/pyllm-" in link}
            titles[process.pid] = (process.cmdline() or [""])[0]
            descriptors[process.pid] = len(links)
            sockets[process.pid] = sum(link.startswith("socket:") for link in links)
    files = frozenset(str(file) for folder in folders for file in Path(folder).iterdir())
    return Census(titles, descriptors, sockets, files, segments(), zombies)


def lowest(counts: Iterable[Census]) -> Census:
    """The last of several, with the least descriptors and sockets that any saw: what comes and goes is no leak."""
    all_counts = list(counts)
    last = all_counts[-1]
    return last._replace(
        descriptors={pid: min(count.descriptors.get(pid, 1 << 30) for count in all_counts) for pid in last.descriptors},
        sockets={pid: min(count.sockets.get(pid, 1 << 30) for count in all_counts) for pid in last.sockets},
        zombies=min(count.zombies for count in all_counts),
    )


class Leaks(NamedTuple):
    """What there is too much of at the end."""

    processes: int
    descriptors: int
    sockets: int
    segments: int


def leaks(begin: Census, end: Census) -> Leaks:
    """Of descriptors and open sockets, those of processes that have lived through it all."""
    lived = unchanged(begin, end)
    return Leaks(
        processes=max(0, len(end.titles) - len(begin.titles)) + max(0, end.zombies - begin.zombies),
        descriptors=sum(max(0, end.descriptors[pid] - begin.descriptors[pid]) for pid in lived),
        sockets=sum(max(0, end.sockets[pid] - begin.sockets[pid]) for pid in lived)
        + max(0, len(end.files) - len(begin.files)),
        segments=len(unheld(end.segments - begin.segments)),
    )


def unchanged(begin: Census, end: Census) -> list[int]:
    """Processes that are there both times and do the same: a spare that has taken another one's place does not."""
    return [pid for pid, title in begin.titles.items() if end.titles.get(pid) == title]


def growth(begin: Census, end: Census) -> list[str]:
    """What the leaks are, in words: descriptors of processes that have lived through it all, and files."""
    return [
        f"{end.titles[pid]}: {begin.descriptors[pid]} descriptors ({begin.sockets[pid]} sockets), then "
        f"{end.descriptors[pid]} ({end.sockets[pid]})"
        for pid in unchanged(begin, end)
        if end.descriptors[pid] > begin.descriptors[pid]
    ] + sorted(end.files - begin.files)


def segments() -> frozenset[str]:
    """Names of all segments of shared memory on this machine."""
    return frozenset(entry.name for entry in SEGMENTS.iterdir()) if SEGMENTS.is_dir() else frozenset()


def unheld(names: Iterable[str]) -> set[str]:
    """Those of them that no process has open or mapped: nobody else's, that is, and left behind."""
    wanted = {str(SEGMENTS / name) for name in names}
    for process in psutil.process_iter():
        if not wanted:
            break
        with contextlib.suppress(OSError, psutil.Error):
            held = set(_links(process.pid)) | {mapped.path for mapped in process.memory_maps()}
            wanted -= held
    return wanted


def alive(seen: Iterable[psutil.Process], supervisor: psutil.Process | None) -> list[psutil.Process]:
    """Processes that were once the server's and are no longer below its supervisor, but live."""
    below = set() if supervisor is None else {supervisor, *supervisor.children(recursive=True)}
    return [process for process in seen if process not in below and _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _links(pid: int) -> Iterable[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"{folder}/{name}")
