"""The cache of parsed headers: used while the file is the same, rebuilt when anything about it is not."""

import os
import stat
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pyllm.checkpoint.cache import cache_folder, cached_gguf, weights_digest
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(write_tiny_gguf(write_tiny_model(tmp_path / "tiny"), tmp_path / "tiny.gguf"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")})


def modification_times(folder: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]


def test_the_folder_is_private(folder: Path) -> None:
    assert folder.name == "pyllm"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        cache_folder({"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_a_second_read_writes_nothing_and_gives_the_same(model: Path, folder: Path) -> None:
    first = cached_gguf(model, folder)
    times = modification_times(folder)
    assert len(times) == 2
    assert cached_gguf(model, folder) == first
    assert modification_times(folder) == times


def test_a_file_in_the_place_of_another_of_its_size_and_time_is_read_again(model: Path, folder: Path) -> None:
    content, status = model.read_bytes(), model.stat()
    first = cached_gguf(model, folder)
    other = model.with_name("other.gguf")
    other.write_bytes(content.replace(b"general.name", b"general.nome"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(model)
    times = modification_times(folder)
    assert cached_gguf(model, folder).fingerprint == first.fingerprint
    assert modification_times(folder) != times


def test_a_folder_that_cannot_be_written_is_done_without(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    checkpoint = read_checkpoint(str(model))
    assert Tokenizer.from_file(checkpoint.tokenizer.path).encode("the").ids
    assert "what is read of the model is not kept: cannot use the cache folder" in caplog.text


def test_a_whole_file_may_have_the_name_of_a_part(model: Path, folder: Path) -> None:
    part = model.rename(model.with_name("tiny-00001-of-00002.gguf"))
    assert cached_gguf(part, folder).files == (str(part),)


def test_a_changed_file_is_read_again(model: Path, folder: Path) -> None:
    cached_gguf(model, folder)
    times = modification_times(folder)
    os.utime(model, ns=(1, 1))
    cached_gguf(model, folder)
    assert modification_times(folder) != times


@pytest.mark.parametrize("suffix", ["checkpoint", "tokenizer.json"])
@pytest.mark.parametrize("damage", [b"", b"\xc1\xff damaged"])
def test_a_damaged_entry_is_rebuilt(model: Path, folder: Path, suffix: str, damage: bytes) -> None:
    first = cached_gguf(model, folder)
    (entry,) = folder.glob(f"*.{suffix}")
    entry.write_bytes(damage)
    assert cached_gguf(model, folder) == first
    assert entry.read_bytes() != damage
    assert Tokenizer.from_file(first.tokenizer.path).encode("the").ids


def test_the_digest_of_weights_is_of_all_bytes_and_kept_by_the_files_identities(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(100_000))
    names, environment = [str(file) for file in files], {"XDG_CACHE_HOME": str(tmp_path)}
    before = weights_digest(names, environment)
    assert len(bytes.fromhex(before)) == 32
    (kept,) = (tmp_path / "pyllm").glob("*.weights")
    assert weights_digest(names, environment) == before
    kept.write_text("11" * 32)
    assert weights_digest(names, environment) == "11" * 32, "they are not read again"
    kept.write_text("11")
    assert weights_digest(names, environment) == before
    with files[1].open("r+b") as file:
        file.seek(99_999)
        file.write(b"1")
    assert weights_digest(names, environment) != before
    assert weights_digest(names[::-1], environment) != weights_digest(names, environment)
    unusable = {"XDG_CACHE_HOME": str(files[0])}
    assert weights_digest(names, unusable) == weights_digest(names, environment)
