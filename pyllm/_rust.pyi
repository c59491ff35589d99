"""The scheduler, written in Rust: `rust/pyllm-scheduler` behind the thin shim `rust/pyllm-python`.

Integers are little-endian. Token ids are packed int32. A method may be called from any thread; the interpreter lock is
released while it works. A refused call raises `SchedulerError` and changes nothing.
"""

from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

__all__ = ["SECTIONS", "NeverFitsError", "Plan", "Scheduler", "SchedulerError", "__version__"]

__version__: str

SECTIONS: tuple[tuple[str, str], ...]
"""Name and element ("i" int32, "f" float32, "B" byte) of each section of a plan, in order."""

class SchedulerError(ValueError):
    """A call that the scheduler refused. The text gives the numbers and what to do next."""

class NeverFitsError(SchedulerError):
    """A request that could not run even alone: longer than `max_model_len`, or than the whole KV cache."""

@final
class Plan(Buffer):
    """What one step computes: a read-only buffer of `SECTIONS`, each starting at the next multiple of 64 bytes.

    With T tokens, R rows (sequences), S sampled positions, K table changes, F slot copies, C block copies and I slot
    initialisations, the sections hold:

    - `tokens` [T], -1 where it is the token that the slot sampled last; `positions` [T]
    - `slot_mapping` [T], block * block_size + offset: where keys and values go
    - `query_starts` [R + 1]; `sequence_lengths` [R], the context with this step's tokens; `slots` [R]
    - `logits_rows` [S], indices into `tokens`; `sampled_starts` [R + 1]; `uniforms` [S], float32 in (0, 1)
    - `table_slots`, `table_indices`, `table_blocks` [K]: block_tables[slot][index] = block
    - `block_copies` [2 * C], (source, destination) pairs; `swaps` [0]
    - `slot_copies` [2 * F], (source, destination) pairs
    - `slot_inits` [I], slots; `sampling_starts` [I + 1]; `sampling`, the bytes given to `add`, end to end

    A worker applies slot copies, slot initialisations, table changes and block copies, in that order, then computes. An
    initialisation comes with the slot's whole block-table row. A slot copy takes over the row and the sampling state.
    Slot copies read every source before any destination is written; block copies may run at once.
    """

    @property
    def step(self) -> int:
        """The step's id, to be given to `Scheduler.commit`."""
    @property
    def counts(self) -> list[int]:
        """Elements in each section."""
    @property
    def num_tokens(self) -> int:
        """T."""
    @property
    def num_rows(self) -> int:
        """R."""

@final
class Scheduler:
    """Decides what every step computes, in which blocks of the KV cache. It has no clock, no randomness and no I/O."""

    def __new__(
        cls,
        *,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        vocab_size: int,
        enable_prefix_caching: bool,
    ) -> Scheduler:
        """Sizes are counts: tokens per block, blocks, slots, tokens per step, tokens per sequence, token ids.

        Raises `SchedulerError` for a size out of its range.
        """
    def add(
        self,
        client: int,
        request: int,
        prompt: bytes,
        *,
        seed: int,
        max_tokens: int,
        n: int = 1,
        stop_token_ids: bytes = b"",
        sampling: bytes = b"",
        outputs: Sequence[tuple[bytes, bool]] = (),
        arrival: float = 0.0,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        adapter: str = "",
    ) -> None:
        """Queue a request. `(client, request)` names it: uint32, uint64, never used again.

        Token ids are below `vocab_size`; those in `stop_token_ids` may be others too. `seed` is a uint64. `n` is at
        most `max_num_seqs`. `max_tokens` counts the tokens in `outputs`, which resumes a request: what each of the `n`
        samples has, and whether it has finished. A stop token ends a sample and is part of its output. `sampling` goes
        to the worker as it is. `arrival` is in the seconds of `schedule`'s clock and decides the order of the queue.
        Requests share cached blocks where `tenant`, `cache_salt` and `adapter` are all equal. `priority` is for a
        policy that looks at it; first come, first served does not.

        Raises `NeverFitsError` if it could not run even alone, `SchedulerError` for any other argument that is wrong.
        """
    def abort(self, client: int, request: int, sample: int = -1) -> bool:
        """End a request, or one sample of it (-1: all), with a final delta.

        False: there is no such sample, or it has finished. Never an error, since a client may be late or wrong.
        """
    def hold(self, client: int, request: int, reason: str) -> None:
        """Keep a request from running until `release`; what runs of it is preempted.

        Raises `SchedulerError` if there is no such request, or it is held already.
        """
    def release(self, client: int, request: int) -> None:
        """Put a held request back where it was in the queue.

        Raises `SchedulerError` if there is no such request, or it is not held.
        """
    def drop_client(self, client: int) -> None:
        """End all requests of a client that is gone, and forget its deltas."""
    def schedule(self, now: float) -> Plan | None:
        """Plan the next step; None if nothing may be planned before a commit or a new request.

        May be called again before the step is committed. Raises `SchedulerError` if `now` (seconds) goes back.
        """
    def commit(self, step: int, starts: Buffer, tokens: Buffer) -> list[int]:
        """Take the tokens of the oldest step in flight: row i sampled `tokens[starts[i]:starts[i + 1]]` (int32 both).

        Tokens of a sequence that has ended meanwhile are dropped. Gives the clients that have deltas to take. Raises
        `SchedulerError` if the step is not in flight or not the oldest, or the shape is not what the plan asked for.
        """
    def pending_clients(self) -> list[int]:
        """The clients that have deltas to take, longest waiting first."""
    def take_deltas(self, client: int) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes] | None:
        """What is new for a client since the last call, one row a sample; None if nothing is.

        Columns: request ids (uint64), samples (int32), offsets of the first new token in the sample's output (int32),
        token starts (int32, one more than rows), tokens (int32), finish codes (uint8: 0 goes on, 1 stop, 2 length,
        3 abort), prompt tokens found in the prefix cache at first admission (int32).
        """
    def lose_device(self) -> None:
        """The device and all it held are gone: what ran returns to its place in the queue, to be computed anew.

        The steps in flight can no longer be committed.
        """
    def stats(self) -> dict[str, int]:
        """Gauges and counters. Sequences (samples), not requests, run, wait and are held.

        Gauges: `num_requests`, `num_running`, `num_waiting`, `num_held`, `num_blocks`, `num_free_blocks` (with those
        that the prefix cache still knows), `num_used_blocks`, `num_cached_blocks`. Counters: `num_preemptions`,
        `prefix_queries` and `prefix_hits` (tokens, at first admission), `num_computed_tokens`, `num_steps`.
        """
