import pytest

from pyllm.errors import ConfigError
from pyllm.wire.server_address import error_text, server_address, server_key


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("https://host/openai/v1/", "https://host/openai"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert server_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "http://", "http://host:99999", "http://a b", "http://host?x=1", "http://[::1", "x"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        server_address(text)


def test_a_key_is_given_or_of_the_environment() -> None:
    assert server_key("", {"OPENAI_API_KEY": "theirs"}) == "theirs"
    assert server_key("mine", {"OPENAI_API_KEY": "theirs"}) == "mine"
    for wrong in ("two\nlines", "ü"):
        with pytest.raises(ConfigError, match="no header can carry"):
            server_key(wrong, {})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "two\\nlines"}', "two lines"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": {"code": 3}}', "{'code': 3}"),
        (b"<html> bad", "<html> bad"),
        (b"", "without a text"),
        (b"\xff", "\ufffd"),
        (b"x" * 400, "x" * 300 + "..."),
    ],
)
def test_the_text_of_an_error(body: bytes, text: str) -> None:
    assert error_text(body) == text
