"""The shared state of a server with one API process: in it, with the methods of the one that is elsewhere."""

from pyllm.frontend.shared.messages import Admission, Granted, Refused
from pyllm.frontend.shared.state import SharedState

_OWNER = 0


class LocalState:
    """Asks a `SharedState` in this process. What is asked is awaited, what is told is not."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    async def admit(self, admission: Admission) -> Granted | Refused:
        """Open a ticket, unless it is refused."""
        return self._state.admit(_OWNER, admission)

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """Count a prompt, unless it is refused: then the ticket is closed."""
        return self._state.charge(_OWNER, ticket, num_prompt_tokens)

    def started(self, ticket: int) -> None:
        """Its first token has come."""
        self._state.started(_OWNER, ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        """Close a ticket; one that is closed already stays so."""
        self._state.ended(_OWNER, ticket, num_output_tokens)
