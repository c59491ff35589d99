"""Models of the hub, against a small hub on this machine: what is downloaded, kept, resumed, refused and deleted."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyllm.checkpoint.hub import FoundModel, Hub, find_model, search_models
from pyllm.checkpoint.hub_cache import cached_models, remove
from pyllm.checkpoint.model_name import parse_hub_name
from pyllm.checkpoint.reader import read_checkpoint, read_tokenizer
from pyllm.errors import ConfigError
from tests.checkpoint.vocabularies.vocabulary_folders import write_byte_level
from tests.hub_server import HubServer, Repository
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

NOT_NEEDED = ("README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx", "picture.png")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as hub:
        folder = Path(write_tiny_model(tmp_path / "tiny"))
        for name in NOT_NEEDED:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"not needed")
        hub.add("me/tiny", folder, revisions=("main", "refs/pr/1", "v1"))
        yield hub


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.endpoint, cache_dir=str(tmp_path / "cache"), token="hf_other", offline=False)


def offline(hub: Hub) -> Hub:
    return Hub(endpoint="http://127.0.0.1:9", cache_dir=hub.cache_dir, token=hub.token, offline=True)


def add_gguf(server: HubServer, folder: Path) -> None:
    source = write_tiny_model(folder / "source", hidden_size=64, intermediate_size=128)
    (folder / "gguf").mkdir()
    write_tiny_gguf(source, folder / "gguf/tiny-F32.gguf")
    write_tiny_gguf(source, folder / "gguf/tiny-Q8_0.gguf", quantisation=gguf.GGMLQuantizationType.Q8_0)
    server.add("me/tiny-GGUF", folder / "gguf")


def test_only_needed_files_come_and_the_name_is_the_one_that_was_given(
    server: HubServer, hub: Hub, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint("me/tiny", hub)
    assert checkpoint.name == "me/tiny"
    assert checkpoint.fingerprint == read_checkpoint(str(tmp_path / "tiny")).fingerprint
    assert sorted(server.downloaded()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert server.downloaded()[-1] == "model.safetensors"


def test_a_tokenizer_comes_without_weights(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    read_checkpoint(str(tmp_path / "tiny"), hub, "me/tiny")
    assert "tokenizer.json" in server.downloaded()
    assert "model.safetensors" not in server.downloaded()
    add_gguf(server, tmp_path)
    read_checkpoint(str(tmp_path / "tiny"), hub, "me/tiny-GGUF:Q8_0")
    assert server.downloaded()[-1] == "tiny-Q8_0.gguf"


def test_the_vocabulary_comes_where_there_is_no_tokenizer_json(
    server: HubServer, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "built"))
    folder = Path(write_tiny_model(tmp_path / "old"))
    (folder / "tekken.json").write_text("no part of it")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_text("{}" if name == "vocab.json" else "")
    server.add("me/both", folder)
    read_checkpoint("me/both", hub)
    assert not {"vocab.json", "merges.txt"} & set(server.downloaded())
    (folder / "tokenizer.json").unlink()
    write_byte_level(folder, "gpt2", {})
    server.add("me/old", folder)
    assert read_tokenizer("me/old", hub).eos_token == "<|endoftext|>"
    assert {"vocab.json", "merges.txt"} <= set(server.downloaded())
    assert "tekken.json" not in server.downloaded()
    assert server.downloaded().count("model.safetensors") == 1


def test_what_is_cached_is_not_downloaded_again(server: HubServer, hub: Hub) -> None:
    read_checkpoint("me/tiny", hub)
    server.requests.clear()
    read_checkpoint("me/tiny", hub)
    assert [(method, path) for method, path, _ in server.requests] == [("GET", "/api/models/me/tiny/revision/main")]


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1"])
def test_a_revision_is_kept_under_its_name(hub: Hub, revision: str) -> None:
    path = find_model(parse_hub_name(f"me/tiny@{revision}"), hub)
    assert path == find_model(parse_hub_name(f"me/tiny@{revision}"), offline(hub))
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        find_model(parse_hub_name("me/tiny"), offline(hub))
    assert [model.name for model in cached_models(hub.cache_dir)] == [f"me/tiny@{revision}"]


def test_shards_of_the_index_come_and_no_name_leaves_the_folder(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    tensors = load_file(tmp_path / "tiny/model.safetensors")
    folder = Path(write_tiny_model(tmp_path / "sharded"))
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file(
            {name: np.array(value) for name, value in tensors.items() if weight_map[name] == shard}, folder / shard
        )
    (folder / "extra.safetensors").write_bytes(b"not in the index")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    repository = server.add("me/sharded", folder)
    checkpoint = read_checkpoint("me/sharded", hub)
    assert [Path(file).name for file in checkpoint.files] == sorted(set(weight_map.values()))
    assert checkpoint.fingerprint == read_checkpoint(str(tmp_path / "tiny")).fingerprint
    assert "extra.safetensors" not in server.downloaded()
    for evil in ("../../evil.safetensors", "/etc/evil.safetensors", "..\\evil.safetensors"):
        repository.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": evil}}).encode()
        with pytest.raises(ConfigError, match=r"index\.json is damaged: .*evil"):
            read_checkpoint("me/sharded", hub)


def test_a_gguf_file_comes_alone_by_its_quantisation_or_name(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    add_gguf(server, tmp_path)
    checkpoint = read_checkpoint("hf.co/me/tiny-GGUF:q8_0", hub)
    assert (checkpoint.name, checkpoint.format) == ("hf.co/me/tiny-GGUF:q8_0", "gguf")
    assert server.downloaded() == ["tiny-Q8_0.gguf"]
    assert find_model(parse_hub_name("me/tiny-GGUF"), hub).name == "tiny-Q8_0.gguf"
    assert find_model(parse_hub_name("me/tiny-GGUF/tiny-F32.gguf"), hub).name == "tiny-F32.gguf"
    assert server.downloaded() == ["tiny-Q8_0.gguf", "tiny-F32.gguf"]
    with pytest.raises(ConfigError, match=r"me/tiny-GGUF has no Q4_K_M; it has F32, Q8_0"):
        read_checkpoint("me/tiny-GGUF:Q4_K_M", hub)


def test_a_cut_connection_resumes_where_it_broke(server: HubServer, hub: Hub) -> None:
    content = bytes(12 << 20)  # huggingface_hub writes 10 MiB at a time.
    server.repositories["me/big"] = Repository({"big-Q8_0.gguf": content})
    server.cut_after = 11 << 20
    assert find_model(parse_hub_name("me/big"), hub).read_bytes() == content
    asked = [asked for method, path, asked in server.requests if method == "GET" and path.endswith(".gguf")]
    assert asked == ["", f"bytes={10 << 20}-"]


def test_without_network_the_cache_serves_and_says_so(
    server: HubServer, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    read_checkpoint("me/tiny", hub)
    server.requests.clear()
    assert read_checkpoint("me/tiny", offline(hub)).name == "me/tiny"
    assert server.requests == []
    server.status = 503
    with caplog.at_level(logging.WARNING):
        assert read_checkpoint("me/tiny", hub).name == "me/tiny"
    unreachable = Hub(endpoint="http://127.0.0.1:9", cache_dir=hub.cache_dir, offline=False)
    with caplog.at_level(logging.WARNING):
        assert read_checkpoint("me/tiny", unreachable).name == "me/tiny"
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning.partition("): ")[2] for warning in warnings] == ["using the cached copy of me/tiny"] * 2
    with pytest.raises(
        ConfigError, match=r"me/other is not in the cache .*cannot reach http://127\.0\.0\.1:9 .*HF_END"
    ):
        read_checkpoint("me/other", unreachable)


@pytest.mark.parametrize("page", [b"<html>", b"{}", b"[]", b'{"id": "me/tiny", "sha": "../../x", "siblings": []}'])
def test_a_page_of_another_server_is_no_hub(server: HubServer, hub: Hub, page: bytes) -> None:
    server.page = page
    with pytest.raises(
        ConfigError, match=r"me/tiny is not in the cache .* \(its answer (is not that of|names no commit)"
    ):
        read_checkpoint("me/tiny", hub)
    server.page = b""
    read_checkpoint("me/tiny", hub)
    server.page = page
    assert read_checkpoint("me/tiny", hub).name == "me/tiny"


def test_half_a_download_is_no_model_offline(server: HubServer, hub: Hub) -> None:
    path = find_model(parse_hub_name("me/tiny"), hub)
    (path / "model.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=r"cached copy of me/tiny is not complete .*model\.safetensors.* HF_HUB_OFFLINE"
    ):
        read_checkpoint("me/tiny", offline(hub))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("me/gated", r"me/gated is gated: accept its terms at http://127.*/me/gated, and use a token of that account"),
        ("me/private", r"there is no model me/private at http://127.*if it is private, your token cannot see it"),
        ("me/absent", r"there is no model me/absent at http://127.*nor a file or folder of that name here"),
        ("me/tiny@v2", r"me/tiny has no revision 'v2'"),
        ("me/pickled", r"neither model\.safetensors nor a GGUF file: it has .*pytorch_model\.bin"),
        ("me/tiny:Q4_K_M", r"me/tiny has no GGUF file: it has .*model\.safetensors"),
    ],
)
def test_a_refusal_says_what_to_do_and_no_secret(
    server: HubServer, hub: Hub, tmp_path: Path, name: str, text: str
) -> None:
    folder = tmp_path / "tiny"
    server.add("me/gated", folder, gated=True)
    server.add("me/private", folder, private=True)
    server.add("me/pickled", folder).files.pop("model.safetensors")
    with pytest.raises(ConfigError, match=text) as error:
        read_checkpoint(name, hub)
    assert "hf_" not in str(error.value)


def test_the_token_opens_what_is_gated(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    server.add("me/gated", tmp_path / "tiny", gated=True)
    opened = Hub(endpoint=hub.endpoint, cache_dir=hub.cache_dir, token=server.token, offline=False)
    assert read_checkpoint("me/gated", opened).name == "me/gated"


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    full = Hub(endpoint=hub.endpoint, cache_dir=str(tmp_path / "file/cache"), offline=False)
    with pytest.raises(ConfigError, match=r"cannot download me/tiny to .*file/cache.* free.*HF_HUB_CACHE"):
        read_checkpoint("me/tiny", full)


def test_the_cache_is_listed_and_models_are_deleted(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    assert cached_models(hub.cache_dir) == []
    add_gguf(server, tmp_path)
    for name in ("me/tiny", "me/tiny-GGUF:Q8_0", "me/tiny-GGUF:F32"):
        read_checkpoint(name, hub)
    models = cached_models(hub.cache_dir)
    assert [(model.name, model.format) for model in models] == [
        ("me/tiny", "safetensors"),
        ("me/tiny-GGUF:F32", "GGUF F32"),
        ("me/tiny-GGUF:Q8_0", "GGUF Q8_0"),
    ]
    assert models[1].num_bytes == (tmp_path / "gguf/tiny-F32.gguf").stat().st_size
    assert remove(parse_hub_name("me/tiny-GGUF:f32"), hub.cache_dir) == models[1].num_bytes
    assert [model.name for model in cached_models(hub.cache_dir)] == ["me/tiny", "me/tiny-GGUF:Q8_0"]
    assert remove(parse_hub_name("me/tiny"), hub.cache_dir) == models[0].num_bytes
    remove(parse_hub_name("me/tiny-GGUF"), hub.cache_dir)
    assert cached_models(hub.cache_dir) == []
    with pytest.raises(ConfigError, match=r"me/tiny is not in the cache: `pyllm models` lists"):
        remove(parse_hub_name("me/tiny"), hub.cache_dir)


def test_to_delete_one_name_of_a_revision_leaves_the_others(server: HubServer, hub: Hub) -> None:
    for name in ("me/tiny", "me/tiny@v1"):
        read_checkpoint(name, hub)
    assert remove(parse_hub_name("me/tiny@v1"), hub.cache_dir) == 0
    assert read_checkpoint("me/tiny", offline(hub)).name == "me/tiny"
    with pytest.raises(ConfigError, match="not in the cache"):
        read_checkpoint("me/tiny@v1", offline(hub))
    assert remove(parse_hub_name("me/tiny"), hub.cache_dir) > 0


def test_a_download_that_broke_off_is_deleted_too(hub: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "cache/models--me--tiny/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_bytes(b"half")
    assert remove(parse_hub_name("me/tiny"), hub.cache_dir) == 4
    assert not blobs.exists()


def test_progress_is_reported_for_each_file(hub: Hub) -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    find_model(parse_hub_name("me/tiny"), hub, report=lambda file, *sizes: told.setdefault(file, []).append(sizes))
    assert {"config.json", "model.safetensors"} <= told.keys()
    for sizes in told.values():
        assert [done for done, _ in sizes] == sorted(done for done, _ in sizes)
        assert sizes[-1][0] == sizes[-1][1] > 0


def test_a_search_lists_what_is_downloaded_most_first(server: HubServer, hub: Hub) -> None:
    server.repositories["you/tiny-GGUF"] = Repository({"a.gguf": b"1"})
    server.repositories["you/other"] = Repository({"a.gguf": b"1"})
    first, second = search_models("tiny", hub, 20)
    assert (first.id, second) == ("me/tiny", FoundModel("you/tiny-GGUF", 1, 1, ("gguf",)))
    assert first.tags == ("safetensors",)
    assert [model.id for model in search_models("tiny", hub, 20, "gguf")] == ["you/tiny-GGUF"]
    assert [model.id for model in search_models("tiny", hub, 1)] == ["me/tiny"]
    assert search_models("nothing", hub, 20) == []


def test_a_search_that_fails_says_why(server: HubServer, hub: Hub) -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        search_models("tiny", offline(hub), 20)
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:9 .*check the network, or HF_ENDPOINT"):
        search_models("tiny", Hub(endpoint="http://127.0.0.1:9", offline=False), 20)
    server.page = b"<html>"
    with pytest.raises(ConfigError, match="is not that of a Hugging Face hub"):
        search_models("tiny", hub, 20)
    server.status = 500
    with pytest.raises(ConfigError, match="answers 500 to a search"):
        search_models("tiny", hub, 20)
