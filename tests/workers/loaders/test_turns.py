import threading
from collections.abc import Iterable
from typing import Any

import pytest

from pyllm.errors import ConfigError
from pyllm.workers.loaders.turns import TurnLoader


class CountingReader:
    """Notes each read, and the threads that read at the same time."""

    def __init__(self, fails_at: int = -1) -> None:
        self.names: list[str] = []
        self.fails_at = fails_at

    def read(self, name: str, *args: Any, **options: Any) -> None:
        if len(self.names) == self.fails_at:
            raise ConfigError(f"{name} does not fit")
        self.names.append(name)

    def rows(self, name: str, *args: Any, **options: Any) -> Any:
        self.read(name)

    def release(self, names: Iterable[str]) -> None:
        pass


def load(reader: Any) -> None:
    for number in range(6):
        reader.read(str(number), (1,), None)


def test_each_turn_stops_between_two_reads() -> None:
    reader = CountingReader()
    loader = TurnLoader(load, reader)
    lengths = []
    while not loader.advance(-1.0):  # Its time is over before it begins.
        lengths.append(len(reader.names))
    assert lengths == [0, 1, 2, 3, 4, 5]
    assert loader.is_done
    assert loader.advance(0.0)
    loader.close()


def test_a_long_turn_loads_all() -> None:
    reader = CountingReader()
    loader = TurnLoader(load, reader)
    assert loader.advance(1e9)
    assert reader.names == ["0", "1", "2", "3", "4", "5"]
    loader.close()


def test_an_error_comes_from_the_turn() -> None:
    loader = TurnLoader(load, CountingReader(fails_at=2))
    with pytest.raises(ConfigError, match="2 does not fit"):
        loader.advance(1e9)
    loader.close()


@pytest.mark.parametrize("num_turns", [0, 2])
def test_a_loader_that_is_given_up_leaves_no_thread(num_turns: int) -> None:
    before = threading.active_count()
    loader = TurnLoader(load, CountingReader())
    for _ in range(num_turns):
        loader.advance(-1.0)
    loader.close()
    assert threading.active_count() == before
