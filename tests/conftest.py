"""For every test: processes that share cores do not spin while they wait, crashes are recorded out of the way, no
example has a deadline, as how long one takes depends on what else runs, and the garbage collector ignores modules.
"""

import gc
import logging
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from pyllm.machine.extras import is_installed
from tests.services import Marked
from tests.tiers import ALL

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # OpenMP reads this when it is loaded.

# Below nohup it is ignored, and so it would be in the servers that tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# `make test` has a quarter of the cases of each property, `make properties` all of them.
settings.register_profile("all", deadline=None, max_examples=ALL)
settings.register_profile("quarter", deadline=None, max_examples=ALL // 4)
settings.load_profile("quarter")

gc.disable()  # Imports leave almost no garbage; to look for it takes a fifth of the time of a collection of all tests.


# Folders of files that may take a minute each.
SLOW = tuple(f"{Path(__file__).parent / name}/" for name in ("e2e", "workers", "families", "kernels"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a CUDA card or torch where there is none, and put slow files first.

    So xdist has small files left to give when a worker has ended before the others.
    """
    for marker, is_there in (("torch", _has_torch), ("gpu", _has_card)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_there():
            items[:] = [item for item in items if item.get_closest_marker(marker) is None]
            config.hook.pytest_deselected(items=marked)
    items.sort(key=lambda item: not str(item.path).startswith(SLOW))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect no garbage meanwhile: finalisers that run in the middle of `ast.parse` make it fail in Python 3.11.

    Then the failure of one test would end the run (https://github.com/python/cpython/issues/106905).
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    Marked.lacking = None if item.get_closest_marker("services") else item.nodeid


def _has_torch() -> bool:
    return is_installed("torch") and is_installed("transformers")


def _has_card() -> bool:
    import torch  # Takes seconds, so only where a test asks.

    return torch.cuda.is_available()


def pytest_collection_finish() -> None:
    """A million objects of modules and tests stay until the end; else each full collection takes a second over them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_sessionfinish() -> None:
    """So that modules are freed at exit: libraries complain of functions that are left."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model, which tests leave as it is."""
    from tests.tiny_model import write_tiny_model  # Loads numpy, which most tests do without.

    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def root_logger() -> Generator[None, None, None]:
    """What a command configures in a test's own process ends with the test: others look at all that is logged."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)
