"""The private folder for sockets and the listening socket."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyllm.errors import ConfigError
from pyllm.wire.listeners import bind_unix_listener
from pyllm.wire.sockets import SocketFolder

HOLD = """
import signal
from pyllm.wire.sockets import SocketFolder
folder = SocketFolder()
print(folder.path, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def private_temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose path is short enough for sockets, as those of pytest need not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def test_folder_is_private_and_goes(private_temp: Path) -> None:
    with SocketFolder() as path:
        assert Path(path).parent == private_temp
        assert Path(path).stat().st_mode & 0o077 == 0
    assert not Path(path).exists()


def test_closing_twice_is_no_error() -> None:
    folder = SocketFolder()
    folder.close()
    folder.close()


def test_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_stays() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    held = Path(holder.stdout.readline().strip())
    with SocketFolder():
        assert held.exists()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with SocketFolder():
        assert not held.exists()


def test_folders_that_are_made_at_the_same_time_all_stay() -> None:
    def make_and_look(_: int) -> bool:
        with SocketFolder() as path:
            return Path(path, "lock").exists()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(make_and_look, range(500)))


def test_a_runtime_folder_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    with SocketFolder() as path:
        assert Path(path).exists()


def test_folder_that_cannot_be_made_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="XDG_RUNTIME_DIR"):
        SocketFolder()


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_a_folder_whose_path_is_too_long_for_sockets_is_replaced_by_a_short_one(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    far = tmp_path / ("x" * 90)
    far.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", None)  # which it keeps
    monkeypatch.setenv(variable, str(far))
    with SocketFolder() as path, bind_unix_listener(f"{path}/worker-63-1023-999"):
        assert Path(path).parent == Path("/tmp")
        assert Path(path).stat().st_mode & 0o077 == 0
    assert not list(far.iterdir())
