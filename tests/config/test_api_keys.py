"""Keys: made, read, and found by what they hash to."""

import logging
from pathlib import Path

import msgspec
import pytest

from pyllm.config.api_keys import Allowance, ApiKey, KeyRing, new_key, read_api_keys
from pyllm.errors import ConfigError


def write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_a_new_key_is_found_by_its_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (key, entry), (other, other_entry) = new_key("team-a"), new_key("team-b")
    assert key != other
    assert key not in entry
    file = write(tmp_path / "keys.json", f'{{"keys": [{entry}, {other_entry}]}}')
    ring = KeyRing(read_api_keys(file, {}))
    for each, name in ((key, "team-a"), (other, "team-b")):
        found = ring.find(each.encode())
        assert found is not None
        assert found.name == name
    for wrong in (b"", b"sk-", key[:-1].encode(), key.encode() + b" ", b"\xff\x00"):
        assert ring.find(wrong) is None
    assert caplog.text == ""


def test_toml_and_limits(tmp_path: Path) -> None:
    _, entry = new_key("a")
    digest = msgspec.json.decode(entry)["sha256"]
    text = f'[[keys]]\nname = "a"\nsha256 = "{digest}"\nmax_requests_per_minute = 7\nmax_concurrent_requests = 0\n'
    (key,) = read_api_keys(write(tmp_path / "keys.toml", text), {})
    assert key.allowance(Allowance(1, 2, 3)) == Allowance(7, 2, 0)


def test_the_environment_may_hold_one() -> None:
    (key,) = read_api_keys("", {"PYLLM_API_KEY": "secret"})
    assert key.name == "default"
    assert KeyRing([key]).find(b"secret") == key
    assert read_api_keys("", {}) == ()
    assert not KeyRing()


@pytest.mark.parametrize("value", ["", "  ", "schlüssel", "a\nb"])
def test_what_no_header_can_carry_is_no_key(value: str) -> None:
    with pytest.raises(ConfigError, match="PYLLM_API_KEY"):
        read_api_keys("", {"PYLLM_API_KEY": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read"),
        ("{}", "keys"),
        ('{"keys": []}', "pyllm apikey NAME"),
        ('{"keys": [{"name": "a", "sha256": "ABC"}]}', "sha256"),
        ('{"keys": [{"name": "", "sha256": "' + "0" * 64 + '"}]}', "name"),
        ('{"keys": [{"name": "a", "sha256": "' + "0" * 64 + '", "limit": 1}]}', "unknown field `limit`"),
        ('{"keys": [{"name": "a", "key": "sk-secret"}]}', "unknown field `key`"),
        (
            '{"keys": [{"name": "a", "sha256": "'
            + "0" * 64
            + '"}, {"name": "a", "sha256": "'
            + "1" * 64
            + '", "max_tokens_per_minute": 5}]}',
            "one account",
        ),
    ],
)
def test_a_file_that_cannot_work_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_api_keys(write(tmp_path / "keys.json", text), {})
    assert "sk-secret" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_api_keys(str(tmp_path / "nowhere"), {})


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "keys.json", f'{{"keys": [{new_key("a")[1]}]}}')
    Path(file).chmod(0o644)
    with caplog.at_level(logging.WARNING):
        read_api_keys(file, {})
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        new_key(name)


def test_every_entry_is_compared() -> None:
    """Keys of one name may be rotated: both work."""
    keys = [ApiKey(name="a", sha256=msgspec.json.decode(new_key("a")[1])["sha256"]) for _ in range(3)]
    fresh, entry = new_key("a")
    ring = KeyRing([*keys, msgspec.json.decode(entry, type=ApiKey), *keys])
    assert ring.find(fresh.encode()) is not None
