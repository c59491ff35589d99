"""When the grammars are loaded: once, when the first request wants them, or before where that disturbs nobody.

Does not know how. llguidance reads a tokenizer in 0.3 s and lets no other thread of Python run meanwhile, and where a
worker takes the place of another one, streams wait for its first steps.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pyllm.workers.grammar import Grammars

# Seconds after which a worker has its weights, and has done its first steps.
DELAY = 3.0


class GrammarLoader:
    """Calls `load` once; threads that come meanwhile wait."""

    def __init__(self, load: Callable[[], Grammars]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Future[Grammars] = Future()

    def load_later(self, delay: float = DELAY) -> None:
        """Load them in so many seconds, on a thread of their own, where nobody has wanted them before."""
        timer = threading.Timer(delay, self._load_once)
        timer.daemon = True
        timer.start()

    def get(self) -> Grammars:
        """The grammars. Raises what `load` raised, whoever asked for it."""
        self._load_once()
        return self._loaded.result()

    def _load_once(self) -> None:
        with self._lock:
            if self._loaded.done():
                return
            try:
                self._loaded.set_result(self._load())
            except Exception as error:  # noqa: BLE001 - told to the requests that want a grammar
                self._loaded.set_exception(error)
