"""Scripted cores behind a real ROUTER, as clients in other processes meet them."""

from functools import partial
from types import TracebackType

import zmq

from pyllm.wire import ipc
from pyllm.wire.messages import ClientMessage, CoreMessage
from tests.client.fake_core import FakeCore


class ZmqCore:
    """`async with ZmqCore(core, address)`: one client's messages go to `core`, what it says goes to that client.

    With `others` the next clients that come have one of these each; the last one is that of all later clients.
    """

    def __init__(self, core: FakeCore, address: str, *others: FakeCore) -> None:
        self.core = core
        self.address = address
        self.malformed: list[str] = []
        self._unmet = [core, *others]
        self._cores: dict[bytes, FakeCore] = {}

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
        core = self._cores.get(identity)
        if core is None:
            core = self._cores[identity] = self._unmet.pop(0) if len(self._unmet) > 1 else self._unmet[0]
            core.on_message = partial(self._say, identity)
        core.send(message)

    def _say(self, identity: bytes, _: bytes, message: CoreMessage) -> None:
        self._endpoint.send(message, identity=identity)
