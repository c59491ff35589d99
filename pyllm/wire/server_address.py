"""The server that a command asks: its address, its key, and the texts that it answers. Sends nothing."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pyllm.errors import ConfigError

_SHOWN_CHARACTERS = 300  # of the text of an error


def server_address(text: str) -> str:
    """An address as people write it, without a slash at its end and without `/v1`.

    Raises:
        ConfigError: it is no address of a server.
    """
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"{text} is no address of a server: {error}") from None
    if not is_address or parts.query or parts.fragment or any(letter.isspace() for letter in text):
        raise ConfigError(f"{text} is no address of a server, as http://127.0.0.1:8000 or https://host/v1 are")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def server_key(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The given key, or else that of OPENAI_API_KEY.

    Raises:
        ConfigError: it cannot be sent.
    """
    key = given or environment.get("OPENAI_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the API key has characters that no header can carry: was more than the key copied?")
    return key


def error_text(body: bytes) -> str:
    """The message in an error's body, in OpenAI's form or another one; shortened, on one line."""
    try:
        text = error_message(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace")
    line = " ".join(text.split()) or "without a text"
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


def error_message(error: Any) -> str:
    """The message of `{"error": {"message": ...}}`, or of one without the outer or the inner object."""
    while isinstance(error, dict):
        error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), str(error))
    return str(error)
