"""The methods of the shared state, for one API process. `RemoteState` derives the same methods for other processes.

Over the wire, coroutines are answered and plain methods are not. Does not know the wire.
"""

import asyncio

from pyllm.frontend.shared.messages import (
    Admission,
    Attached,
    Conflict,
    CoreRefusal,
    Full,
    Granted,
    Headers,
    Page,
    Refused,
    Run,
)
from pyllm.frontend.shared.shared_state import SharedState
from pyllm.wire.supervision_messages import CoreEntry, CoreList


class LocalState:
    """A `SharedState` of this process, for the API process with the number `member`."""

    def __init__(self, state: SharedState, member: int = 0) -> None:
        self._state = state
        self._member = member
        self.trouble = ""  # as in `RemoteState`: a state in this process is always there

    async def admit(self, admission: Admission) -> Granted | Refused:
        """Open a ticket, unless a limit refuses it."""
        return self._state.admit(self._member, admission)

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """Count a prompt, unless a limit refuses it; a refusal closes the ticket."""
        return self._state.charge(self._member, ticket, num_prompt_tokens)

    def readmit(self, admission: Admission, num_prompt_tokens: int, is_started: bool) -> None:
        """Open a ticket that an earlier state granted."""
        self._state.readmit(self._member, admission, num_prompt_tokens, is_started)

    def started(self, ticket: int) -> None:
        """Note a request's first token."""
        self._state.started(self._member, ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        """Close a ticket, if it is open."""
        self._state.ended(self._member, ticket, num_output_tokens)

    async def claim(self, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """Start to read the answer to a request with a key."""
        return self._state.records.claim(self._member, tenant, key, digest, origin)

    async def take_over(self, record: int) -> Run | Attached | Full:
        """Run a request whose process is gone."""
        return self._state.records.take_over(self._member, record)

    async def read(self, record: int, offset: int) -> Page:
        """Wait for the part of a record that follows `offset`."""
        records = self._state.records
        while (page := records.read(record, offset)) is None:
            changed = asyncio.Event()
            records.wait(record, changed.set)
            await changed.wait()
        return page

    async def find(self, record: int, event_id: bytes) -> int:
        """The offset that follows an event; -1 if the record does not have it."""
        return self._state.records.find(record, event_id)

    def leave(self, record: int) -> None:
        """Stop reading."""
        self._state.records.leave(self._member, record)

    def start(self, run: int, status: int, headers: Headers) -> None:
        """Record the status and headers of a run."""
        self._state.records.start(run, status, headers)

    def append(self, run: int, body: bytes) -> None:
        """Record more of a run's body."""
        self._state.records.append(run, body)

    def finish(self, run: int, keep: bool) -> None:
        """End a run."""
        self._state.records.finish(run, keep)

    async def abandoned(self, run: int) -> None:
        """Wait until a run has no readers for too long, or is over."""
        gone = asyncio.Event()
        self._state.records.wait_abandoned(run, gone.set)
        await gone.wait()

    async def put_response(self, response_id: str, tenant: str, response: bytes) -> None:
        """Keep a response, within bounds."""
        self._state.responses.put(response_id, tenant, response)

    async def get_response(self, response_id: str, tenant: str) -> bytes | None:
        """Return a response, if it is still kept."""
        return self._state.responses.get(response_id, tenant)

    async def delete_response(self, response_id: str, tenant: str) -> bool:
        """Drop a response, and return whether it was kept."""
        return self._state.responses.delete(response_id, tenant)

    async def follow_cores(self, known: CoreList, connected: tuple[int, ...]) -> CoreList:
        """Wait for a newer list of cores than `known`, while the API process is connected to these.

        Another call ends this one: an API process waits once.
        """
        cores = self._state.cores
        cores.connect(self._member, known, connected)
        changed = asyncio.Event()
        cores.wait(self._member, changed.set)
        if cores.list.version <= known.version:
            await changed.wait()
        return cores.list

    async def reserve_core(self, known: CoreList) -> int:
        """The index for a core that is to be added."""
        return self._state.cores.reserve(known)

    async def add_core(self, known: CoreList, entry: CoreEntry) -> CoreList | CoreRefusal:
        """Make all API processes use a core."""
        return self._state.cores.add(known, entry)

    async def remove_core(self, known: CoreList, index: int, timeout: float) -> CoreList | CoreRefusal:  # noqa: ASYNC109 - a value of the list
        """Make a core leave."""
        return self._state.cores.leave(known, index, timeout)

    async def totals(self, row: bytes) -> bytes:
        """Count this row, and return the sums of all API processes, encoded likewise."""
        self.count(row)
        return self._state.totals.sum()

    def count(self, row: bytes) -> None:
        """Replace the counters of the API process: an encoded `Row`."""
        self._state.totals.count(self._member, row)

    def beat(self, row: bytes) -> None:
        """Forget expired records; call twice a second. `row` has the counters of the API process."""
        self.count(row)
        self._state.records.sweep()

    def resize(self, share: float) -> None:
        """Keep at most this share of the usual bytes."""
        self._state.resize(share)

    def close(self) -> None:
        """Nothing to do."""
