"""Several stores as one, the fastest first: a block is kept in all of them, and loaded from the first that has it.

Knows no medium and no step.
"""

from collections.abc import Sequence

from pyllm.kv_transfer.stores import KVStore, Retention, StoreStats


class TieredStore:
    """`tiers` are closed with it. A tier that fails costs its own hits."""

    def __init__(self, tiers: Sequence[KVStore]) -> None:
        self._tiers = tiers

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `KVStore.lookup`. A tier is asked for what those before it have not."""
        found = [False] * len(keys)
        for tier in self._tiers:
            missing = [at for at, is_there in enumerate(found) if not is_there]
            if not missing:
                break
            for at, is_there in zip(missing, tier.lookup([keys[at] for at in missing]), strict=True):
                found[at] = is_there
        return found

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """See `KVStore.load`. What a later tier has given is saved in those before it."""
        loaded = [False] * len(keys)
        for number, tier in enumerate(self._tiers):
            missing = [at for at, is_there in enumerate(loaded) if not is_there]
            if not missing:
                break
            given = tier.load([keys[at] for at in missing], [into[at] for at in missing])
            new = [at for at, is_there in zip(missing, given, strict=True) if is_there]
            for at in new:
                loaded[at] = True
            for faster in self._tiers[:number] if new else ():
                faster.save([keys[at] for at in new], [into[at] for at in new])
        return loaded

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """See `KVStore.save`. True: one of the tiers keeps it."""
        kept = [tier.save(keys, blocks, retention) for tier in self._tiers]
        return [any(of_block) for of_block in zip(*kept, strict=True)]

    def stats(self) -> StoreStats:
        """The figures of the first tier; `tier_stats` has them all."""
        return self._tiers[0].stats()

    def tier_stats(self) -> list[StoreStats]:
        """The figures of each tier, the fastest first."""
        return [tier.stats() for tier in self._tiers]

    def close(self) -> None:
        """Close every tier."""
        for tier in self._tiers:
            tier.close()
