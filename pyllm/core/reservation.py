"""The reservation of this core for requests that were lost with another one, and which of those are still suspect.

Clients ask for it, and hear of it in load reports. It refuses no request: that is the clients' part, since only they
know whether another core can take it.
"""

from collections.abc import Callable

from pyllm._rust import Scheduler, SchedulerError
from pyllm.core.faults.quarantine import RequestKey
from pyllm.wire.messages import CLEARING_TOKENS, MAX_RESERVATION, RESERVATION, Submit


class Reservation:
    """Begins with a client's `Reserve`, lasts for `RESERVATION` seconds from the last one, and ends for good some time.

    No client can keep a core to itself: it is reserved for at most `MAX_RESERVATION` seconds, and not again before as
    many have passed as that took, whoever asks.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._begin = self._end = float("-inf")
        self._rests_until = float("-inf")
        self._suspects: dict[RequestKey, tuple[int, ...]] = {}  # tokens of each sample when it came, with its prompt

    def ask(self) -> bool:
        """A client wants it to begin, or to last longer. True if it begins."""
        now = self._clock()
        begins = now >= self._rests_until
        if begins:
            self._begin = now
        elif now >= self._end:
            return False
        self._end = min(now + RESERVATION, self._begin + MAX_RESERVATION)
        self._rests_until = self._end + (self._end - self._begin)
        return begins

    @property
    def end(self) -> float:
        """When it ends, by this core's clock; 0 if there is none."""
        return self._end if self.seconds_left else 0.0

    @property
    def seconds_left(self) -> float:
        """How long it lasts, unless a client asks again."""
        return max(0.0, self._end - self._clock())

    def admit(self, key: RequestKey, submit: Submit) -> None:
        """A request has come that was lost with a core."""
        size = len(submit.prompt) // 4
        outputs = [len(output.tokens) // 4 for output in submit.outputs] or [0] * submit.n
        self._suspects[key] = tuple(size + num_tokens for num_tokens in outputs)

    def num_suspects(self) -> int:
        """The requests that came as suspects, live, and have had too few tokens since to be cleared."""
        if self._suspects:
            self._suspects = {key: sizes for key, sizes in self._suspects.items() if self._is_suspect(key, sizes)}
        return len(self._suspects)

    def _is_suspect(self, key: RequestKey, sizes: tuple[int, ...]) -> bool:
        try:
            samples = self._scheduler.explain(*key)
        except SchedulerError:
            return False  # It has ended.
        # As the client's journal counts; tokens of samples that have ended are left out, so that it is cleared later.
        live = [sample for sample in samples if sample["state"] != "finished"]
        num_fresh: int = sum(max(0, sample["num_known"] - sizes[sample["sample"]]) for sample in live)
        return num_fresh < CLEARING_TOKENS * len(live)
