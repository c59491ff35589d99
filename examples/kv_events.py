"""Follow what a core has in its KV cache, as routers do, through lost batches and restarts."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from pyllm import EngineClient, SamplingParams

END = b"\xff" * 8


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int = 0


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    seconds: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


class BlockMap:
    """The blocks of one core, each as hash, group of layers and medium; `next` is the number of the batch to come."""

    def __init__(self) -> None:
        self.next = 0
        self.blocks: set[tuple[int | bytes, int, str | None]] = set()

    def apply(self, sequence: int, payload: bytes) -> bool:
        """Take a batch; False: one before it is missing, so this one was not taken."""
        events = msgspec.msgpack.decode(payload, type=Batch).events
        is_whole = bool(events) and isinstance(events[0], AllBlocksCleared)  # All that there is, so nothing is missing.
        if not is_whole and sequence != self.next:
            return sequence < self.next  # A replay has brought it already.
        self.next = sequence + 1
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                continue
            blocks = {(hash_, event.group_idx, event.medium) for hash_ in event.block_hashes}
            self.blocks = self.blocks | blocks if isinstance(event, BlockStored) else self.blocks - blocks
        return True


def replay(socket: zmq.Socket[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """The batches from a number on, from a DEALER that is connected to the replay endpoint."""
    socket.send_multipart([b"", first.to_bytes(8, "big")])
    while True:
        _, _, sequence, payload = socket.recv_multipart()
        if sequence == END:
            return
        yield int.from_bytes(sequence, "big"), payload


def follow(endpoint: str, replay_endpoint: str) -> Iterator[BlockMap]:
    """The blocks of a core, after each batch; `endpoint` is that of `--kv-events-endpoint`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    subscription, replays, blocks = context.socket(zmq.SUB), context.socket(zmq.DEALER), BlockMap()
    monitor = subscription.get_monitor_socket(zmq.EVENT_CONNECTED)
    subscription.subscribe(b"")
    subscription.connect(endpoint)
    replays.connect(replay_endpoint)
    poller = zmq.Poller()
    poller.register(subscription, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    while ready := dict(poller.poll()):
        if monitor in ready:  # Another core may have begun to count anew.
            recv_monitor_message(monitor)
            batches = list(replay(replays, 0))
            blocks = BlockMap()
        else:
            _, sequence, payload = subscription.recv_multipart()
            batches = [(int.from_bytes(sequence, "big"), payload)]
        for each in batches:
            if not blocks.apply(*each):
                for missed in replay(replays, blocks.next):
                    blocks.apply(*missed)
        yield blocks


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        core, events, replays = (f"ipc://{folder}/{name}" for name in ("core", "events", "replays"))
        flags = ["--enable-kv-cache-events", "--kv-events-endpoint", events, "--kv-events-replay-endpoint", replays]
        process = subprocess.Popen([sys.executable, "-m", "pyllm", "core", "--bind", core, *flags])
        client = await EngineClient.connect(core, timeout=120)
        # As many tokens of "The capital of France is Paris." as fill two blocks of 16.
        prompt = [504, 3575, 282, 4649, 314, 7042, 30] * 5
        async for _ in client.generate(prompt, SamplingParams(temperature=0, max_tokens=1)):
            pass
        known = next(each for each in follow(events, replays) if each.blocks)
        print(f"{len(known.blocks)} blocks hold what is said of Paris, up to batch {known.next - 1}")
        client.close()
        process.terminate()
        process.wait()


if __name__ == "__main__":
    asyncio.run(main())
