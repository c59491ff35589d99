"""A scripted core behind a real ROUTER, as a client in another process meets it."""

from types import TracebackType

import zmq

from pyllm.wire import ipc
from pyllm.wire.messages import ClientMessage, CoreMessage
from tests.client.fake_core import FakeCore


class ZmqCore:
    """`async with ZmqCore(core, address)`: one client's messages go to `core`, what it says goes to that client."""

    def __init__(self, core: FakeCore, address: str) -> None:
        self.core = core
        self.address = address
        self.malformed: list[str] = []
        self._identity = b""
        core.on_message = self._say

    async def __aenter__(self) -> "ZmqCore":
        self._context = zmq.Context()
        self.socket = ipc.bind(self._context, zmq.ROUTER, self.address)
        self._endpoint: ipc.Endpoint[ClientMessage, CoreMessage] = ipc.Endpoint(
            self.socket, ClientMessage, self._receive, lambda identity, text: self.malformed.append(text)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._context.term()

    def stop(self) -> None:
        """Close the socket, as the kernel does when a core is killed."""
        self._endpoint.close()

    def _receive(self, identity: bytes, message: ClientMessage) -> None:
        self._identity = identity
        self.core.send(message)

    def _say(self, identity: bytes, message: CoreMessage) -> None:
        self._endpoint.send(message, identity=self._identity)
