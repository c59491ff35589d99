"""The requests of this core that were lost with another one and may have ended it, until they have had enough tokens.

Isolates none of them: `faults/quarantine.py` does. Knows no reservation.
"""

from pyllm._rust import Scheduler, SchedulerError
from pyllm.core.faults.quarantine import RequestKey
from pyllm.wire.messages import CLEARING_TOKENS, Submit


class LostRequests:
    """Each is here from its coming until it has ended, or has had `CLEARING_TOKENS` of each sample since."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sizes: dict[RequestKey, tuple[int, ...]] = {}  # tokens of each sample when it came, with its prompt

    def admit(self, key: RequestKey, submit: Submit) -> None:
        """A request has come that was lost with a core."""
        size = len(submit.prompt) // 4
        outputs = [len(output.tokens) // 4 for output in submit.outputs] or [0] * submit.n
        self._sizes[key] = tuple(size + num_tokens for num_tokens in outputs)

    def count(self) -> int:
        """How many there are; those that have ended or are cleared are forgotten."""
        if self._sizes:
            self._sizes = {key: sizes for key, sizes in self._sizes.items() if self._is_suspect(key, sizes)}
        return len(self._sizes)

    def _is_suspect(self, key: RequestKey, sizes: tuple[int, ...]) -> bool:
        try:
            samples = self._scheduler.explain(*key)
        except SchedulerError:
            return False  # It has ended.
        # As the client's journal counts; tokens of samples that have ended are left out, so that it is cleared later.
        live = [sample for sample in samples if sample["state"] != "finished"]
        num_fresh: int = sum(max(0, sample["num_known"] - sizes[sample["sample"]]) for sample in live)
        return num_fresh < CLEARING_TOKENS * len(live)
