"""Triton's kernels are interpreted where there is no CUDA device; runners of the tiny model, and its tokens."""

from typing import TYPE_CHECKING

import pytest

from tests.triton_interpreter import interpret

if TYPE_CHECKING:
    from pyllm.workers.model_runner import ModelRunner

interpret()


@pytest.fixture
def runner(model: str) -> "ModelRunner":
    from tests.workers.engine import loaded_runner

    return loaded_runner(model)


@pytest.fixture(scope="session")
def expected(model: str) -> list[list[int]]:
    """The tokens with which transformers continues each prompt."""
    from tests.workers.continuations import continuations

    return continuations(model)
