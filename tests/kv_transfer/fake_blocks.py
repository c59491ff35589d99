"""A rank's KV cache in memory, as a connector sees it."""

from collections.abc import Sequence


class FakeBlocks:
    """`written` has the blocks in the order of the writes. A copy of the block `broken` raises OSError."""

    def __init__(self, num_blocks: int, block_bytes: int = 1, broken: int | None = None) -> None:
        self.block_bytes = block_bytes
        self.contents = bytearray(num_blocks * block_bytes)
        self.num_begun = 0
        self.written: list[int] = []
        self._broken = broken

    def begin(self) -> None:
        self.num_begun += 1

    def read(self, blocks: Sequence[int], into: Sequence[memoryview]) -> None:
        for block, buffer in zip(blocks, into, strict=True):
            self._check(block)
            buffer[:] = self.contents[self._place(block)]

    def write(self, blocks: Sequence[int], source: Sequence[memoryview]) -> None:
        for block, buffer in zip(blocks, source, strict=True):
            self._check(block)
            self.contents[self._place(block)] = buffer
            self.written.append(block)

    def _check(self, block: int) -> None:
        if block == self._broken:
            raise OSError(f"block {block} is broken")

    def _place(self, block: int) -> slice:
        return slice(block * self.block_bytes, (block + 1) * self.block_bytes)
