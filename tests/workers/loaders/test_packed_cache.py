"""Packed matrices on disk: found again bit by bit, and by nobody unless the file is whole."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyllm_kernels
import pytest
from pyllm_kernels import MatrixRows, PackedLinear
from pyllm_kernels.ops.packed_linear import pack_rows, packed_linear
from pyllm_kernels.tensors import numpy_dtype, view_as

from pyllm.config.option_reading import engine_config
from pyllm.launch.resolve import resolve_config
from pyllm.workers.decoder import Decoder
from pyllm.workers.devices.host import HostDevice
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.layers.weight_placement import WeightPlacement
from pyllm.workers.loaders.formats import weight_reader
from pyllm.workers.loaders.packed_cache import CacheLocation, PackedCache, open_packed_cache
from pyllm.workers.loaders.tensor_table import TensorTable

MOST = 1 << 30
KEY = "0123"
FORMATS = [("q8_0", "q8_0"), ("float32", "int8"), ("q4_1", "int8"), ("float32", "bfloat16"), ("float32", "float32")]


def pack(cache: PackedCache, weight_format: str, packed_as: str) -> PackedLinear:
    if weight_format == "float32":
        rows = MatrixRows.of(np.random.default_rng(0).standard_normal((40, 64), np.float32))
    else:
        blocks = np.full((40, 2 * {"q8_0": 34, "q4_1": 20}[weight_format]), 0x21, np.uint8)
        rows = MatrixRows.of(blocks, weight_format)
    return pack_rows([rows], packed_as, "bfloat16" if packed_as != "float32" else "float32", cache.room)


def fill(cache: PackedCache) -> list[PackedLinear]:
    matrices = [pack(cache, *formats) for formats in FORMATS]
    cache.add("all", matrices)
    return matrices


def kept(folder: Path, suffix: str = "packed") -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.glob(f"*.{suffix}"))


def test_matrices_are_found_again_bit_by_bit(tmp_path: Path) -> None:
    cache = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    assert cache.find("all") is None
    matrices = fill(cache)
    assert kept(tmp_path) == []
    cache.finish().join()
    assert kept(tmp_path) == [KEY]
    again = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    assert again.find("other") is None
    found = again.find("all")
    assert found is not None
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    for ours, theirs in zip(matrices, found, strict=True):
        assert (ours.format, ours.dtype, ours.data.dtype) == (theirs.format, theirs.dtype, theirs.data.dtype)
        np.testing.assert_array_equal(view_as(ours.data, "uint8"), view_as(theirs.data, "uint8"))
        products = [packed_linear(x.astype(numpy_dtype(packed.dtype)), packed) for packed in (ours, theirs)]
        np.testing.assert_array_equal(*products)
    again.finish().join()
    assert kept(tmp_path) == [KEY]


def test_two_writers_leave_one_whole_file(tmp_path: Path) -> None:
    first, second = (PackedCache(CacheLocation(tmp_path, KEY, MOST)) for _ in range(2))
    assert len(kept(tmp_path, "part")) == 2
    for cache in (first, second):
        fill(cache)
    for thread in [first.finish(), second.finish()]:
        thread.join()
    assert PackedCache(CacheLocation(tmp_path, KEY, MOST)).find("all") is not None
    assert kept(tmp_path, "part") == []


def test_writers_that_begin_at_the_same_time_remove_no_file_of_each_other(tmp_path: Path) -> None:
    def write(key: str) -> None:
        PackedCache(CacheLocation(tmp_path, key, MOST)).finish().join()

    keys = [f"{number:03}" for number in range(100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, keys))
    assert (kept(tmp_path), kept(tmp_path, "part")) == (keys, [])


def test_what_a_killed_writer_leaves_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    (tmp_path / "dead.x.part").write_bytes(b"half")
    living = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    assert kept(tmp_path, "part") == [KEY]
    other = PackedCache(CacheLocation(tmp_path, "4567", MOST))
    assert kept(tmp_path, "part") == [KEY, "4567"]
    for cache in (living, other):
        fill(cache)
        cache.finish().join()
    assert kept(tmp_path) == [KEY, "4567"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c[:-1],
        lambda c: c[:100],
        lambda c: b"",
        lambda c: c[:-60] + c[-59:] + b"x",
        lambda c: c[4096:],
        lambda c: c[:5000] + c[9096:],
        lambda c: bytes(4096) + c,
    ],
)
def test_a_damaged_file_is_written_anew(tmp_path: Path, damage: object) -> None:
    cache = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    fill(cache)
    cache.finish().join()
    path = tmp_path / f"{KEY}.packed"
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    anew = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    assert anew.find("all") is None
    fill(anew)
    anew.finish().join()
    assert PackedCache(CacheLocation(tmp_path, KEY, MOST)).find("all") is not None


def test_a_file_under_the_name_of_another_is_not_taken(tmp_path: Path) -> None:
    cache = PackedCache(CacheLocation(tmp_path, KEY, MOST))
    fill(cache)
    cache.finish().join()
    (tmp_path / f"{KEY}.packed").rename(tmp_path / "4567.packed")
    other = PackedCache(CacheLocation(tmp_path, "4567", MOST))
    assert other.find("all") is None
    other.finish().join()


def test_files_that_were_not_used_for_longest_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = []
    for key in ("1", "2"):
        cache = PackedCache(CacheLocation(tmp_path, key, MOST))
        fill(cache)
        cache.finish().join()
        sizes.append((tmp_path / f"{key}.packed").stat().st_size)
    PackedCache(CacheLocation(tmp_path, "1", MOST))  # a use
    cache = PackedCache(CacheLocation(tmp_path, "3", 2 * sizes[0] + 100))
    fill(cache)
    cache.finish().join()
    assert kept(tmp_path) == ["1", "3"]
    with caplog.at_level(logging.WARNING):
        small = PackedCache(CacheLocation(tmp_path, "4", 1000))
        matrices = fill(small)
        small.finish().join()
    assert "--packed-cache-size is 1000: raise it" in caplog.text
    assert kept(tmp_path) == ["1", "3"]
    assert all(matrix.data.any() for matrix in matrices)
    assert kept(tmp_path, "part") == []


def test_a_folder_that_cannot_be_written_is_told_and_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        cache = PackedCache(CacheLocation(tmp_path / "missing", KEY, MOST))
    assert "packed weights are not kept in" in caplog.text
    assert len(fill(cache)) == len(FORMATS)
    cache.finish().join()


@pytest.mark.parametrize("quantization", ["gguf", "int8"])
def test_a_model_from_the_cache_is_the_packed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, checkpoint = resolve_config(engine_config({"device": "cpu", "quantization": quantization}))
    models = []
    for _ in range(2):
        cache = open_packed_cache(engine, checkpoint, 0)
        assert cache is not None
        kernels = pyllm_kernels.select("cpu", "cpu")
        placement = WeightPlacement(RankGroup(), "bfloat16", HostDevice(), kernels, quantization, cache)
        models.append(Decoder(checkpoint.spec, placement))
        models[-1].load(weight_reader(checkpoint, TensorTable(checkpoint)))
        cache.finish().join()
    pairs = zip(*(list(model.matrices()) for model in models), strict=True)
    assert all(np.array_equal(ours.data, theirs.data) for ours, theirs in pairs)
    np.testing.assert_array_equal(models[0].embedding.packed.data, models[1].embedding.packed.data)
    assert len(kept(tmp_path / "pyllm")) == 1


def test_a_model_that_was_replaced_by_another_of_its_size_and_time_is_packed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    model = tmp_path / "model.gguf"
    checkpoint = msgspec.structs.replace(checkpoint, files=(str(model),))
    keys = set()
    for content in (b"one", b"two"):
        model.write_bytes(content)
        os.utime(model, ns=(1, 1))
        cache = open_packed_cache(engine, checkpoint, 0)
        assert cache is not None
        keys.add(cache.key)
        cache.finish().join()
    assert len(keys) == 2


def test_no_cache_where_it_is_not_wanted_or_not_worth_it() -> None:
    engine, checkpoint = resolve_config(engine_config({"device": "cpu"}))
    for changes in ({"packed_cache_size": 0}, {"quantization": "none", "dtype": "bfloat16"}):
        model = msgspec.structs.replace(engine.model, **changes)
        assert open_packed_cache(msgspec.structs.replace(engine, model=model), checkpoint, 0) is None
    assert open_packed_cache(engine, msgspec.structs.replace(checkpoint, tensors=checkpoint.tensors[:1]), 0) is None
    source = msgspec.structs.replace(checkpoint.tensors[0].source, type="F8_E4M3")
    float8 = msgspec.structs.replace(checkpoint.tensors[0], source=source)
    assert (
        open_packed_cache(engine, msgspec.structs.replace(checkpoint, tensors=(float8, *checkpoint.tensors)), 0) is None
    )
