"""A store of KV blocks of your own: a second engine loads what the first has computed of the prompt."""

from collections.abc import Sequence

from pyllm import LLMEngine, SamplingParams
from pyllm.kv_transfer.stores.store import Retention, StoreStats

PROMPT = (
    "Germany's capital is Berlin. Italy's capital is Rome. Spain's capital is Madrid. Austria's capital is Vienna. "
    "The capital of France is"
)
BLOCKS: dict[bytes, bytes] = {}


class MemoryStore:
    """Blocks by key, in a dict. Several threads call it. `load` says True only for a block as it was saved."""

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in BLOCKS for key in keys]

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        loaded = []
        for key, buffer in zip(keys, into, strict=True):
            block = BLOCKS.get(key, b"")
            is_whole = len(block) == len(buffer)
            if is_whole:
                buffer[:] = block
            loaded.append(is_whole)
        return loaded

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        BLOCKS.update((key, bytes(block)) for key, block in zip(keys, blocks, strict=True))
        return [True] * len(keys)

    def stats(self) -> list[StoreStats]:
        return [StoreStats(tier="memory", num_blocks=len(BLOCKS))]

    def close(self) -> None:
        pass


def ask() -> None:
    connector = {"kv_connector": "StoreConnector", "kv_connector_extra_config": {"store": "__main__:MemoryStore"}}
    engine = LLMEngine(kv_transfer_config=connector)
    engine.add_request("1", PROMPT, SamplingParams(temperature=0, max_tokens=4))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                print(repr(output.outputs[0].text), "with", output.num_cached_tokens, "tokens from the store")
    engine.close()


ask()
ask()
