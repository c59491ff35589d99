"""Which cases of a test `make test` leaves to `make full`."""

from typing import Any

import pytest


def full(*values: object) -> Any:
    """A case that only `make full` runs: one like it is in `make test`."""
    return pytest.param(*values, marks=pytest.mark.full)
