"""The tokenizers that the frontend's tests share."""

from pathlib import Path

import pytest

from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.text import tiny_tokenizers


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizers.load(tiny_tokenizers.byte_level(), _folder(tmp_path_factory))


@pytest.fixture(scope="session")
def fallback_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizers.load(tiny_tokenizers.byte_fallback(), _folder(tmp_path_factory))


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("tokenizer")
