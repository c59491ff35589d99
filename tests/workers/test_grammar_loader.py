import threading

import pytest

from pyllm.errors import ConfigError
from pyllm.workers.grammar import Grammars
from pyllm.workers.grammar_loader import GrammarLoader


def test_grammars_are_loaded_once_whoever_wants_them() -> None:
    threads: list[threading.Thread] = []
    both_asked = threading.Barrier(3)

    def load() -> Grammars:
        threads.append(threading.current_thread())
        return Grammars.__new__(Grammars)

    loader = GrammarLoader(load)
    got: list[Grammars] = []

    def ask() -> None:
        both_asked.wait(10)
        got.append(loader.get())

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    loader.load_later(0.0)
    both_asked.wait(10)
    for thread in asking:
        thread.join(10)
    assert len(threads) == 1
    assert got[0] is got[1] is loader.get()


def test_grammars_are_loaded_before_anyone_wants_them() -> None:
    loaded = threading.Event()

    def load() -> Grammars:
        loaded.set()
        return Grammars.__new__(Grammars)

    GrammarLoader(load).load_later(0.0)
    assert loaded.wait(10)


def test_each_who_wants_grammars_is_told_why_there_are_none() -> None:
    calls: list[None] = []

    def load() -> Grammars:
        calls.append(None)
        raise ConfigError("no tokenizer")

    loader = GrammarLoader(load)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no tokenizer"):
            loader.get()
    assert len(calls) == 1
