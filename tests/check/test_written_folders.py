"""The folders of an environment that is made up."""

from pathlib import Path

from pyllm.check.written_folders import PACKED_WEIGHTS, SOCKETS, written_folders
from pyllm.machine.system_limits import read_limits


def test_folders_follow_the_environment(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "TRITON_CACHE_DIR": "/triton", "XDG_RUNTIME_DIR": "/run/u"}
    folders = {purpose: find() for purpose, find in written_folders(environment).items()}
    assert folders[PACKED_WEIGHTS] == tmp_path / "pyllm"
    assert folders[SOCKETS] == Path("/run/u")
    assert folders["Triton's kernels"] == Path("/triton")


def test_a_cache_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = written_folders({"XDG_CACHE_HOME": str(tmp_path / "file")})
    folder = read_limits(folders, tmp_path).folder(PACKED_WEIGHTS)
    assert folder is not None
    assert not folder.writable
