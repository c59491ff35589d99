"""The stage of a core: ready, recovering, stalled, draining or paused, with the reason. Clients get every change.

Knows no requests.
"""

from pyllm.core.clients import Clients
from pyllm.core.faults.recovery import Recovery
from pyllm.core.pausing import Pausing
from pyllm.core.steps_in_flight import StepsInFlight
from pyllm.wire.messages import CoreStage, Heartbeat


class Stage:
    """Reads the stage from the recovery, the steps in flight and the pause; the core sets `is_draining`."""

    def __init__(self, clients: Clients, recovery: Recovery, steps: StepsInFlight, pausing: Pausing) -> None:
        self.is_draining = False
        self._clients = clients
        self._recovery = recovery
        self._steps = steps
        self._pausing = pausing
        self._sent: tuple[CoreStage, str] = ("ready", "")  # which clients assume at first

    def send_changes(self) -> None:
        """Send the stage to all clients if it has changed."""
        if self._now() != self._sent:
            self.send()

    def send(self) -> None:
        """Send the stage to all clients."""
        self._sent = self._now()
        self._clients.post_all(self._heartbeat())

    def greet(self, client: int) -> None:
        """Send a new client the stage, unless it is ready, which clients assume."""
        if self._sent[0] != "ready":
            self._clients.post(client, self._heartbeat())

    def _heartbeat(self) -> Heartbeat:
        stage, reason = self._sent
        return Heartbeat(stage, self._steps.last_step, reason)

    def _now(self) -> tuple[CoreStage, str]:
        if self._recovery.reason:
            return "recovering", self._recovery.reason
        if self._steps.stall:
            return "stalled", self._steps.stall
        if self.is_draining:
            return "draining", "the engine is shutting down"
        return ("paused", self._pausing.reason) if self._pausing.is_paused else ("ready", "")
