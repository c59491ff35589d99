"""For every test: processes that share cores do not spin while they wait, crashes are recorded out of the way, and no
example has a deadline, as how long one takes depends on what else runs.
"""

import logging
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # OpenMP reads this when it is loaded.

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def root_logger() -> Generator[None, None, None]:
    """What a command configures in a test's own process ends with the test: others look at all that is logged."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)
