from collections.abc import Iterator

import pytest

from tests.e2e.server import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server with the embedded model and default flags, for every test that leaves it as it was."""
    with Server() as started:
        yield started
    assert started.process.returncode == 0
    assert started.orphans() == []
