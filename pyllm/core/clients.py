"""The clients of one core: their identities, their heartbeats, and the messages that they have not taken yet.

Sends never block. A slow client's messages wait here in order, while its deltas merge in the scheduler. Knows no
requests.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from pyllm.wire.heartbeat import HEARTBEAT_INTERVAL
from pyllm.wire.ipc import PeerGoneError, Sender
from pyllm.wire.messages import CoreMessage, Deltas

# A client that leaves this many answers unread, besides its deltas, does not read at all.
MAX_HELD_MESSAGES = 1024
# Seconds without a message before a client loses its requests. Counted in our own heartbeats and not by the clock:
# a core that was stopped for a minute must first read the messages that arrived meanwhile.
CLIENT_SILENCE = 10.0

TakeDeltas = Callable[[int], Deltas | None]

logger = logging.getLogger(__name__)


class _Client:
    def __init__(self, index: int, identity: bytes) -> None:
        self.index = index
        self.identity = identity
        self.silent_beats = 0
        self.held: deque[CoreMessage] = deque()


class Clients:
    """Maps a socket identity to the small integer that the scheduler knows a client by, and back.

    `take_deltas(index)` takes one client's deltas from the scheduler; it is called only when the client has taken all
    earlier messages. `on_gone(index)` is called once for each client that is dropped.
    """

    def __init__(self, sender: Sender[CoreMessage], take_deltas: TakeDeltas, on_gone: Callable[[int], None]) -> None:
        self._sender = sender
        self._take_deltas = take_deltas
        self._on_gone = on_gone
        self._by_identity: dict[bytes, _Client] = {}
        self._by_index: dict[int, _Client] = {}
        self._next_index = 0

    def __len__(self) -> int:
        return len(self._by_index)

    def register(self, identity: bytes) -> int:
        """Register a client that says hello and return its index; a second hello keeps the index."""
        client = self._by_identity.get(identity)
        if client is None:
            client = _Client(self._next_index, identity)
            self._next_index += 1
            self._by_identity[identity] = client
            self._by_index[client.index] = client
        client.silent_beats = 0
        return client.index

    def seen(self, identity: bytes) -> int | None:
        """Note a message of a client; returns its index, or None if it is unknown."""
        client = self._by_identity.get(identity)
        if client is None:
            return None
        client.silent_beats = 0
        return client.index

    def takes_more(self, index: int) -> bool:
        """Whether a client has taken all messages so far."""
        client = self._by_index.get(index)
        return client is not None and not client.held

    def gone_of(self, indices: Iterable[int]) -> list[int]:
        """The given clients that were dropped."""
        return [index for index in indices if index not in self._by_index]

    def post(self, index: int, message: CoreMessage) -> None:
        """Send one message, or hold it in order behind those the client has not taken yet."""
        client = self._by_index.get(index)
        if client is None:
            return
        if not client.held and self._send(client, message):
            return
        client.held.append(message)
        if len(client.held) > MAX_HELD_MESSAGES:
            logger.warning("client %d left %d messages unread and is dropped", index, len(client.held))
            self._drop(client)

    def post_all(self, message: CoreMessage) -> None:
        """Send one message to every client."""
        for index in list(self._by_index):
            self.post(index, message)

    def deliver(self, indices: Iterable[int]) -> None:
        """Send the deltas that the scheduler holds for these clients."""
        for index in indices:
            client = self._by_index.get(index)
            if client is not None and self._flush(client) and (deltas := self._take_deltas(index)) is not None:
                self.post(index, deltas)

    def beat(self) -> None:
        """Call at 2 Hz: drop clients that were silent for `CLIENT_SILENCE`, and send held messages to the others."""
        for client in list(self._by_index.values()):
            client.silent_beats += 1
            if client.silent_beats * HEARTBEAT_INTERVAL > CLIENT_SILENCE:
                logger.warning("client %d was silent for %g s and is dropped", client.index, CLIENT_SILENCE)
                self._drop(client)
            else:
                self._flush(client)

    def _flush(self, client: _Client) -> bool:
        while client.held:
            message = client.held.popleft()
            if not self._send(client, message):
                client.held.appendleft(message)
                return False
        return True

    def _send(self, client: _Client, message: CoreMessage) -> bool:
        try:
            return self._sender.send(message, identity=client.identity)
        except PeerGoneError:
            self._drop(client)
            return True

    def _drop(self, client: _Client) -> None:
        client.held.clear()
        if self._by_index.pop(client.index, None) is not None:
            del self._by_identity[client.identity]
            self._on_gone(client.index)
