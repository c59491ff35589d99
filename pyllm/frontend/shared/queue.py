"""Limits on the requests and prompt tokens that wait, over all API processes. Knows no account and no core."""

from pyllm.config.process_config import SharedConfig
from pyllm.frontend.shared.messages import Refused

# Seconds until a retry: how fast the queue moves is not known here.
QUEUE_RETRY = 1.0


class AdmissionQueue:
    """Counts of running and of waiting sequences, and of the waiting prompts' tokens.

    As many sequences as all cores can run at once do not count as queued. A request that would be alone in the queue is
    admitted, however large, so that none is refused for ever.
    """

    def __init__(self, config: SharedConfig) -> None:
        self._config = config
        self._max_num_seqs = config.max_num_seqs
        self._max_queued = config.max_num_queued_reqs
        self._num_waiting = 0
        self._num_running = 0
        self._num_tokens = 0

    @property
    def num_queued(self) -> int:
        """Sequences without a token beyond those that can run at once."""
        return max(0, self._num_waiting - max(0, self._max_num_seqs - self._num_running))

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all sequences that have no output token yet."""
        return self._num_tokens

    def resize(self, max_num_seqs: int) -> None:
        """Set the number of sequences that cores run at once; a bound that was not set by the user scales with it."""
        self._max_num_seqs = max_num_seqs
        if self._config.scales_queue:
            self._max_queued = max(1, self._config.max_num_queued_reqs * max_num_seqs // self._config.max_num_seqs)

    def enter(self, num_sequences: int) -> Refused | None:
        """Add waiting sequences, unless the queue is full; a request without sequences needs no core, so it passes."""
        most = self._max_queued
        if most and num_sequences and self.num_queued >= most:
            text = (
                f"The queue is full: {self.num_queued} requests wait, and at most {most} may. Please try again later."
            )
            return Refused("max_num_queued_reqs", text, QUEUE_RETRY)
        self._num_waiting += num_sequences
        return None

    def charge(self, num_tokens: int) -> Refused | None:
        """Add a prompt's waiting tokens, unless they would be too many."""
        most = self._config.max_num_queued_tokens
        if most and self._num_tokens and self._num_tokens + num_tokens > most:
            text = (
                f"The queue is full: {self._num_tokens} prompt tokens wait, {num_tokens} more would be "
                f"more than {most}. Please try again later."
            )
            return Refused("max_num_queued_tokens", text, QUEUE_RETRY)
        self._num_tokens += num_tokens
        return None

    def reenter(self, num_sequences: int, num_tokens: int) -> None:
        """Add waiting sequences that an earlier state admitted, with their prompts' tokens."""
        self._num_waiting += num_sequences
        self._num_tokens += num_tokens

    def started(self, num_sequences: int, num_tokens: int) -> None:
        """Count sequences as running, as they have their first token."""
        self._num_waiting -= num_sequences
        self._num_running += num_sequences
        self._num_tokens -= num_tokens

    def leave_waiting(self, num_sequences: int, num_tokens: int) -> None:
        """Remove sequences that ended without a token."""
        self._num_waiting -= num_sequences
        self._num_tokens -= num_tokens

    def leave_running(self, num_sequences: int) -> None:
        """Remove running sequences that ended."""
        self._num_running -= num_sequences
