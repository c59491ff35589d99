"""The clients of one core: who is connected, and what each is still owed.

Sends never block: what a slow client does not take is held here in order, and its deltas go on merging in the
scheduler meanwhile. Does not know what a request is.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from pyllm.child import HEARTBEAT_INTERVAL
from pyllm.ipc import PeerGoneError, Sender
from pyllm.messages import CoreMessage, Deltas

# A client that leaves this many answers unread, besides its deltas, does not read at all.
MAX_HELD_MESSAGES = 1024
# Seconds without a sign of life before a client loses its requests. Counted in our own heartbeats and not by the clock:
# where all has stood still for a minute, what clients sent is read after the next of them.
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

    `take_deltas(index)` gives what the scheduler has gathered for one client; it is asked only when the client has
    taken everything before. `on_gone(index)` is called once for each client that is dropped.
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
        """The index of a client that says hello; a second hello keeps the first index."""
        client = self._by_identity.get(identity)
        if client is None:
            client = _Client(self._next_index, identity)
            self._next_index += 1
            self._by_identity[identity] = client
            self._by_index[client.index] = client
        client.silent_beats = 0
        return client.index

    def seen(self, identity: bytes) -> int | None:
        """Note a sign of life; gives the client's index, or None for a stranger."""
        client = self._by_identity.get(identity)
        if client is None:
            return None
        client.silent_beats = 0
        return client.index

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
        """Let half a second pass: drop who gave no sign of life for `CLIENT_SILENCE`; send what is held, if it goes."""
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
