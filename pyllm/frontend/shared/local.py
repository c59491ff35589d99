"""The shared state as one API process uses it, from the process that has it: what is asked for may be waited for."""

import asyncio
from functools import partial

from pyllm.frontend.shared.messages import Admission, Attached, Conflict, Full, Granted, Headers, Page, Refused, Run
from pyllm.frontend.shared.state import SharedState


class LocalState:
    """Asks a `SharedState` in this process. What is asked is awaited, what is told is not.

    `member` is the API process on whose behalf; `records.py` and `state.py` say what the calls mean.
    """

    def __init__(self, state: SharedState, member: int = 0) -> None:
        self._state = state
        self._member = member
        self.trouble = ""  # why no request can be let in: the state is here

    async def admit(self, admission: Admission) -> Granted | Refused:
        """Open a ticket, unless it is refused."""
        return self._state.admit(self._member, admission)

    async def charge(self, ticket: int, num_prompt_tokens: int) -> Granted | Refused:
        """Count a prompt, unless it is refused: then the ticket is closed."""
        return self._state.charge(self._member, ticket, num_prompt_tokens)

    def readmit(self, admission: Admission, num_prompt_tokens: int, is_started: bool) -> None:
        """Open a ticket that the state before this one had granted."""
        self._state.readmit(self._member, admission, num_prompt_tokens, is_started)

    def started(self, ticket: int) -> None:
        """Its first token has come."""
        self._state.started(self._member, ticket)

    def ended(self, ticket: int, num_output_tokens: int) -> None:
        """Close a ticket; one that is closed already stays so."""
        self._state.ended(self._member, ticket, num_output_tokens)

    async def claim(self, tenant: str, key: str, digest: bytes, origin: str) -> Run | Attached | Conflict | Full:
        """Begin to read the answer to a request with a key."""
        return self._state.records.claim(self._member, tenant, key, digest, origin)

    async def take_over(self, record: int) -> Run | Attached | Full:
        """Run what nobody runs any more."""
        return self._state.records.take_over(self._member, record)

    async def read(self, record: int, offset: int) -> Page:
        """What follows in a record, once there is something."""
        records = self._state.records
        while (page := records.read(record, offset)) is None:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            records.wait(record, partial(_wake, changed))
            await changed
        return page

    async def find(self, record: int, event_id: bytes) -> int:
        """Where a record goes on after an event; -1: it has none of that id."""
        return self._state.records.find(record, event_id)

    def leave(self, record: int) -> None:
        """Read no more."""
        self._state.records.leave(self._member, record)

    def start(self, run: int, status: int, headers: Headers) -> None:
        """The head of a run's answer."""
        self._state.records.start(run, status, headers)

    def append(self, run: int, body: bytes) -> None:
        """More of a run's answer."""
        self._state.records.append(run, body)

    def finish(self, run: int, keep: bool) -> None:
        """The end of a run."""
        self._state.records.finish(run, keep)

    async def abandoned(self, run: int) -> None:
        """Wait until a run has nobody to run for, or is over."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.records.wait_abandoned(run, partial(_wake, gone))
        await gone

    async def put_response(self, response_id: str, tenant: str, response: bytes) -> None:
        """Keep a response, within bounds."""
        self._state.responses.put(response_id, tenant, response)

    async def get_response(self, response_id: str, tenant: str) -> bytes | None:
        """A response, if it is still kept."""
        return self._state.responses.get(response_id, tenant)

    async def delete_response(self, response_id: str, tenant: str) -> bool:
        """Drop a response; whether it was there."""
        return self._state.responses.delete(response_id, tenant)

    async def totals(self, row: bytes) -> bytes:
        """What all API processes have counted, with this row of the one that asks: packed float64."""
        self.count(row)
        return self._state.totals.sum()

    def count(self, row: bytes) -> None:
        """What the API process has counted so far."""
        self._state.totals.count(self._member, row)

    def beat(self, row: bytes) -> None:
        """Let time pass, twice a second; `row` is what the API process has counted."""
        self.count(row)
        self._state.records.sweep()

    def resize(self, share: float) -> None:
        """Keep at most this share of the bytes that are kept otherwise."""
        self._state.resize(share)

    def close(self) -> None:
        """There is nothing to give back."""


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
