"""The requests of this core that were lost with another one and may have crashed it, until they have enough tokens.

Isolates none of them: `quarantine.py` does. Knows no reservation.
"""

from pyllm._rust import Scheduler, SchedulerError
from pyllm.core.faults.quarantine import RequestKey
from pyllm.wire.messages import CLEARING_TOKENS, Submit


class LostRequests:
    """Keeps each from its arrival until it has ended, or each sample has `CLEARING_TOKENS` new tokens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sizes: dict[RequestKey, tuple[int, ...]] = {}  # tokens of each sample at arrival, prompt included

    def admit(self, key: RequestKey, submit: Submit) -> None:
        """Add a request that was lost with a core."""
        size = len(submit.prompt) // 4
        outputs = [len(output.tokens) // 4 for output in submit.outputs] or [0] * submit.n
        self._sizes[key] = tuple(size + num_tokens for num_tokens in outputs)

    def count(self) -> int:
        """The number of these requests; forgets those that have ended or are cleared."""
        if self._sizes:
            self._sizes = {key: sizes for key, sizes in self._sizes.items() if self._is_suspect(key, sizes)}
        return len(self._sizes)

    def _is_suspect(self, key: RequestKey, sizes: tuple[int, ...]) -> bool:
        try:
            samples = self._scheduler.explain(*key)
        except SchedulerError:
            return False  # It has ended.
        # The client's journal counts alike. Tokens of ended samples are left out, which delays the clearing.
        live = [sample for sample in samples if sample["state"] != "finished"]
        num_fresh: int = sum(max(0, sample["num_known"] - sizes[sample["sample"]]) for sample in live)
        return num_fresh < CLEARING_TOKENS * len(live)
