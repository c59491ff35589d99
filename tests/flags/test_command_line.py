import json
from pathlib import Path

import pytest

from pyllm.errors import ConfigError
from pyllm.flags.command_line import expand, split_config


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (["--max_num_seqs", "4"], ["--max-num-seqs", "4"]),
        (["--max_num_seqs=4_0"], ["--max-num-seqs=4_0"]),
        (["my_model", "--dtype", "a_b"], ["my_model", "--dtype", "a_b"]),
        (["-O3"], ["-O=3"]),
        (["-O", "3"], ["-O", "3"]),
        (["--a.b", "1", "--a.c.d=x"], ['--a={"b": 1, "c": {"d": "x"}}']),
        (["--a_b.c_d", "true"], ['--a-b={"c_d": true}']),
        (["--a.b+", "1", "--a.b+=x,2"], ['--a={"b": [1, "x", 2]}']),
        (["--a", '{"b": 1, "c": 2}', "--a.b", "3"], ['--a={"b": 3, "c": 2}']),
        (["--a.b", "3", '--a={"c": 2}'], ['--a={"c": 2, "b": 3}']),
        (["-O.mode", "0"], ['-O={"mode": 0}']),
        (["--temperature", "-0.5", "--", "--a_b"], ["--temperature", "-0.5", "--", "--a_b"]),
    ],
)
def test_arguments_become_plain(given: list[str], plain: list[str]) -> None:
    assert expand(given) == plain


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--a.b"], "needs a value"),
        (["--a.b", "1", "--a.b.c", "2"], "a value of its own"),
        (["--a", "3", "--a.b", "2"], "JSON object"),
        (["--a.b", "1", "--a.b+", "2"], "no list"),
    ],
)
def test_nested_settings_that_contradict_one_another_are_refused(given: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        expand(given)


def test_a_file_becomes_arguments(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "model: owner/repo\nmax_model_len: 4096\nenforce-eager: true\nenable-prefix-caching: false\nseed: null\n"
        "served-model-name: [a, b]\nspeculative-config: {method: ngram}\n"
    )
    found, settings, words = split_config(["other", "--config", str(file), "--port", "1"])
    assert (found, words) == (str(file), ["other", "--port", "1"])
    assert settings == [
        *("--model=owner/repo", "--max-model-len=4096", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--served-model-name", "a", "b", f"--speculative-config={json.dumps({'method': 'ngram'})}"),
    ]
    assert split_config([f"--config={file}"])[1] == settings
    assert split_config(["--port", "1"]) == ("", [], ["--port", "1"])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [", "not YAML"),
        ("- a", "map flags to values"),
        ("1: a", "map flags to values"),
        ("", "map flags to values"),
        ("config: other.yaml", "names another file"),
        ("port: 1\nseed: 2\nport: 1", "has port twice, in lines 1 and 3"),
        ("max-model-len: 1\nmax_model_len: 1", "has max-model-len twice, in lines 1 and 2"),
        ("a: !!python/object:os.system {}", "not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_of_flags_is_refused(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=text):
        split_config(["--config", str(file)])


def test_a_fault_in_a_file_is_told_by_its_place_and_without_the_line(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("port: 1\nkv-cache-redis-url: redis://:geheim@host: 1")
    with pytest.raises(
        ConfigError, match="not YAML: mapping values are not allowed here, in line 2, column 41"
    ) as told:
        split_config(["--config", str(file)])
    assert "geheim" not in str(told.value)


@pytest.mark.parametrize(
    "words",
    [
        ["--kv-transfer-config", "redis://:geheim@host", "--kv-transfer-config.kv_role", "kv_both"],
        ["--kv-transfer-config.extra=geheim", "--kv-transfer-config.extra.password=geheim"],
        ["--kv-transfer-config.extra=1", "--kv-transfer-config.extra+=geheim"],
    ],
)
def test_no_error_of_nested_settings_shows_a_value(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--kv-transfer-config") as caught:
        expand(words)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("words", [["--config"], ["--config", "/nowhere.yaml"], ["--config=a", "--config=b"]])
def test_a_file_that_is_not_there_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--config"):
        split_config(words)
