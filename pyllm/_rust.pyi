"""The scheduler, written in Rust: `rust/pyllm-scheduler` behind the thin shim `rust/pyllm-python`.

Integers are little-endian. Token ids are packed int32. A method may be called from any thread; the interpreter lock is
released while it works, but for `take_deltas`. A refused call raises `SchedulerError` and changes nothing; an argument
of another type is a `TypeError`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, final

from typing_extensions import Buffer

__all__ = [
    "SECTIONS",
    "NeverFitsError",
    "Placement",
    "Plan",
    "RequestHasher",
    "Scheduler",
    "SchedulerError",
    "__version__",
    "replay",
]

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

    With T tokens, R rows (sequences), S sampled positions, K table changes, F slot copies, C block copies, W swaps and
    I slot initialisations, the sections hold:

    - `tokens` [T], -1 where it is the token that the slot sampled last; `positions` [T]
    - `slot_mapping` [groups * T], block * block_size + offset: where keys and values go, one group after another
    - `query_starts` [R + 1]; `sequence_lengths` [R], the context with this step's tokens; `slots` [R]
    - `logits_rows` [S], indices into `tokens`; `sampled_starts` [R + 1]; `uniforms` [S], float32 in (0, 1)
    - `table_slots`, `table_indices`, `table_blocks` [K]: block_tables[row][index] = block, where the row of a group and
      a slot is group * max_num_seqs + slot
    - `block_copies` [2 * C], (source, destination) pairs
    - `swaps` [3 * W], (direction, block, host block) triples: 0 copies to the host, 1 from it; all of 0 come first
    - `slot_copies` [2 * F], (source, destination) pairs
    - `slot_inits` [I], slots; `sampling_starts` [I + 1]; `sampling`, the bytes given to `add`, end to end
    - `history_starts` [I + 1]; `histories`, of stateful requests all known tokens, prompt and output, end to end;
      `prompt_lengths` [I], tokens of each slot's prompt

    A worker applies slot copies, slot initialisations, table changes, swaps and block copies, in that order, then
    computes. An initialisation comes with the slot's whole block-table row. A slot copy takes over the row and the
    sampling state. Slot copies read every source before any destination is written; block copies may run at once.
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
        num_host_blocks: int = 0,
        kv_groups: Sequence[Mapping[str, int | None]] = ...,
        enable_prefix_caching: bool = True,
        max_pinned_blocks: int = 0,
        prefix_hash: str = "blake3",
        prefix_hash_seed: str = "",
        cache_namespace: str = "",
        max_saving_blocks: int = 0,
        separate_outputs: bool = False,
        enable_kv_cache_events: bool = False,
        incarnation: int = 0,
        swap_block_seconds: float = 0.0,
        num_speculative_tokens: int = 0,
        pipeline_parallel_size: int = 1,
        long_prefill_token_threshold: int = 0,
        inter_token_target: float = 0.0,
        policy: str = "fcfs",
        tenant_weights: Mapping[str, int] = ...,
        weights_version: str = "",
        watermark: float = 0.0,
        expected_growth: float = 0.0,
    ) -> Scheduler:
        """Sizes are counts: tokens per block, blocks, slots, tokens per step, tokens per sequence, token ids.

        Each of `kv_groups` is some layers with blocks of their own for the same tokens, `{"window": positions}` if they
        read so many only; one group without a window unless given.

        `num_host_blocks` are swap space and second level of the prefix cache; moving a block there and back takes
        `swap_block_seconds`. Pins may keep `max_pinned_blocks` from eviction. `prefix_hash` is blake3 or sha256_cbor,
        which gives blocks the names that vLLM gives them with `prefix_hash_seed` as PYTHONHASHSEED; with blake3
        `cache_namespace` is a part of each name. With `separate_outputs` the blocks of an output are found only by
        requests with the same prompt. `max_saving_blocks` bounds what `take_saves` keeps. `incarnation`
        names this run in its events. A sequence that runs alone has up to `num_speculative_tokens` drafts a row (0 to
        16) by prompt lookup. With several stages (`pipeline_parallel_size`) a sequence waits for its token before it is
        planned again, and each step takes its share of what runs: keep as many steps in flight. The others are
        explained at `reconfigure`.

        Raises `SchedulerError` for a value out of its range, `TypeError` for one of another type and for a setting that
        is not there.
        """
    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence that fits into the KV cache; None where windows let any length fit."""
    def reconfigure(
        self,
        *,
        max_num_batched_tokens: int = ...,
        long_prefill_token_threshold: int = ...,
        inter_token_target: float = ...,
        policy: str = ...,
        tenant_weights: Mapping[str, int] = ...,
        weights_version: str = ...,
        watermark: float = ...,
        expected_growth: float = ...,
    ) -> None:
        """Change settings from the next step on; those not named stay.

        - `max_num_batched_tokens`: tokens one step may compute; `long_prefill_token_threshold`: of one prompt (0: all)
        - `inter_token_target`: seconds between two tokens of a stream that prefills may not exceed (0: no bound), by
          the step times given to `commit`; a request's `tpot_target` comes before it
        - `policy`: "fcfs"; "priority": lowest first, least slack within, preempts (without
          targets: to a first token after 10 s); "shortest": least remaining work,
          preempts; "fair": by tenant, with `tenant_weights` (1 for those not named); "custom": lowest `policy_key`
        - `weights_version`: of the model; another one has all that runs computed anew and the prefix cache forgotten
        - `watermark`: share of the blocks, 0 to 0.99, that admission leaves free while anything runs;
          `expected_growth`: share, 0 to 16, of the expected growth of what runs that it leaves room for

        Raises `SchedulerError` for a value out of its range or a setting that cannot change, which then all stay.
        """
    def add(
        self,
        client: int,
        request: int,
        prompt: bytes,
        *,
        seed: int,
        max_tokens: int,
        min_tokens: int = 0,
        n: int = 1,
        stop_token_ids: bytes = b"",
        sampling: bytes = b"",
        outputs: Sequence[tuple[bytes, bool]] = (),
        arrival: float = 0.0,
        deadline: float | None = None,
        ttft_target: float | None = None,
        tpot_target: float | None = None,
        priority: int = 0,
        policy_key: float = 0.0,
        tenant: str = "",
        cache_salt: str = "",
        adapter: str = "",
        stateful: bool = False,
        prompt_logprobs: bool = False,
        num_logprobs: int = 0,
        beam_width: int = 0,
        length_penalty: float = 1.0,
        pooling: str = "none",
        name: str = "",
        kv_cache_retention: str = "default",
    ) -> None:
        """Queue a request. `(client, request)` names it: uint32, uint64, never used again.

        Token ids are below `vocab_size`; those in `stop_token_ids` may be others too. `seed` is a uint64. `n` is at
        most `max_num_seqs`. `max_tokens` counts the tokens in `outputs`, which resumes a request: what each of the `n`
        samples has, and whether it has finished. A stop token ends a sample and is part of its output. `sampling` goes
        to the worker as it is. `arrival` and `deadline`, at which it ends unfinished, are in the seconds of
        `schedule`'s clock. Before `min_tokens` no stop token ends a sample. Targets are seconds to the first token and
        from token to token; `priority`, `policy_key` and targets are for the policies that look at them, see
        `reconfigure`. Requests share cached blocks where `tenant`, `cache_salt` and `adapter` are all equal.

        The worker of a `stateful` request is told all known tokens when its slot is initialised, and may sample none,
        or more than planned, see `commit`. With `prompt_logprobs` all of the prompt is computed, whatever is cached.
        `num_logprobs` come with a token at most, its own included: a step has only as many rows and prompt tokens as it
        can carry those of, and such streams take turns.

        With a `beam_width`, which is `n`, the samples are what a beam search finds, best first by their log-probability
        over the power `length_penalty` of their length, and told at its end alone, each token with its log-probability
        and its rank among the candidates. It can be neither stateful nor resumed, and excludes `prompt_logprobs`.

        With `pooling` it asks for its prompt's embedding: `max_tokens` is 0, the prompt may fill `max_model_len`, and
        the step that computes the last of it ends the request. All that is about output is excluded. It is
        none, last or mean; for the mean all of the prompt is computed, whatever is cached, and without a break.

        `kv_cache_retention` is none, default or long. `take_saves` gives it with each of the request's blocks; with
        none they are not saved.

        Raises `NeverFitsError` if it could not run even alone, `SchedulerError` for any other argument that is wrong.
        """
    def abort(self, client: int, request: int, sample: int = -1) -> bool:
        """End a request, or one sample of it (-1: all), with a final delta. A beam search ends as a whole.

        False: there is no such sample, or it has finished. Never an error, since a client may be late or wrong.
        """
    def hold(self, client: int, request: int, holder: str) -> None:
        """Keep a request from running until the same holder's `release`; what runs of it is preempted.

        Several holders may hold it at once. Raises `SchedulerError` if there is no such request, or this holder holds
        it already.
        """
    def release(self, client: int, request: int, holder: str) -> None:
        """End a holder's hold; the last one puts the request back where it was in the queue.

        Raises `SchedulerError` if there is no such request, or this holder does not hold it.
        """
    def isolate(self, client: int, request: int) -> None:
        """Have steps either rows of this request or of others, in turns while both have work.

        It is over when each of its live samples has one more token, or it has ended, or somebody holds it from now on;
        a lost device does not end it. Where it is held already, that begins when it is not. Raises `SchedulerError` if
        there is no such request, or one is isolated already.
        """
    def isolated(self) -> tuple[int, int] | None:
        """Client and request of the one that is isolated."""
    def drop_client(self, client: int) -> None:
        """End all requests of a client that is gone, and forget its deltas."""
    def schedule(self, now: float) -> Plan | None:
        """Plan the next step; None if nothing may be planned before a commit or a new request.

        May be called again before the step is committed. Raises `SchedulerError` if `now` (seconds) goes back.
        """
    def expire(self, now: float) -> None:
        """End the requests whose deadline has come, as `schedule` does: for when nothing can be planned.

        Raises `SchedulerError` if `now` (seconds) goes back.
        """
    def commit(
        self,
        step: int,
        starts: Buffer,
        tokens: Buffer,
        seconds: float = 0.0,
        logprobs: tuple[bytes, bytes, bytes, bytes, bytes, bytes] | None = None,
        embeddings: tuple[bytes, bytes] | None = None,
    ) -> list[int]:
        """Take the tokens of the oldest step in flight: row i sampled `tokens[starts[i]:starts[i + 1]]` (int32 both).

        A row with drafts may have sampled fewer positions than planned; its drafts count as far as they equal what was
        sampled. A row of a stateful request may have none, where the worker was not ready: its last token is planned
        again, and its rows in flight come to nothing. Such a row of one sample may have any number: the drafts that the
        worker has accepted, the token it sampled, and those that are forced to follow; they all count, up to the
        sample's end. Tokens of a sequence that has ended meanwhile are dropped. `seconds`: what the step took, 0 if
        that was not measured. `logprobs`: the columns of `messages.Logprobs`; each token of a prompt once since its
        slot was initialised, in order, from the second on; of a beam's row with the first token the 2 * `beam_width`
        likeliest, by which it goes on. `embeddings`: the columns of `messages.Embeddings`; each row that pools and
        samples has one, and what it sampled means nothing. Gives the clients that have deltas to take. Raises
        `SchedulerError` if the step is not in flight or not the oldest, or the shape is not what the plan asked for;
        nothing changes then.
        """
    def request_of(self, step: int, row: int) -> tuple[int, int] | None:
        """Client and request of a row of a step in flight; None where that has ended meanwhile.

        Raises `SchedulerError` if the step is not in flight, or has no such row.
        """
    def requests_in_flight(self) -> list[tuple[int, int]]:
        """Client and request of the rows of the steps in flight, each once; without those that have ended meanwhile."""
    def note_step(self, plan: Plan, note: Buffer) -> None:
        """Write which requests have rows in a step in flight into a writable buffer of uint32, for
        `supervision/step_trace.py`.

        The words: a checksum (two), the step (two), its tokens and its rows; then client and request (two) of as many
        rows as there is room for. Raises `SchedulerError` if the step is not in flight, or the buffer is too short.
        """
    def expected_seconds(self, step: int) -> float | None:
        """What a step in flight should take, by those measured; None where they do not tell.

        Raises `SchedulerError` if the step is not in flight.
        """
    def history(self, client: int, request: int) -> tuple[bytes, list[bytes]]:
        """The tokens (int32) of a request's prompt, and of the output of each sample that goes on by itself.

        Raises `SchedulerError` if there is no such request.
        """
    def pending_clients(self) -> list[int]:
        """The clients that have deltas to take, longest waiting first."""
    def take_deltas(self, client: int) -> tuple[bytes, ...] | None:
        """What is new for a client since the last call; None if nothing is.

        One row a sample, and before it one more for what is told of its prompt.
        Columns: request ids (uint64), samples (int32), offsets of the first new token in the sample's output (int32,
        negative where a row begins with tokens of the prompt), token starts (int32, one more than rows), tokens
        (int32), finish codes (uint8: 0 goes on, 1 stop, 2 length, 3 abort, 5 deadline), prompt tokens found in the
        prefix cache at first admission (int32); then log-probabilities, all empty where no token has any: starts
        (int32, one more than tokens), ids (int32), values (float32), ranks (int32); then embeddings, both empty where
        no row has one: starts (int32, one more than rows), values (float32); then the rows with which the output of a
        request that is not resumed begins, if any: their indices (int32), seconds from arrival to the first step, and
        from there to the output (float32 both). Holds the interpreter lock meanwhile.
        """
    def lose_device(self) -> None:
        """The device and all it held are gone: what ran returns to its place in the queue, to be computed anew.

        The steps in flight can no longer be committed. What host memory still holds, `restore_host_blocks` says.
        """
    def restore_host_blocks(self, blocks: bytes) -> None:
        """Restore the names of host blocks: for each its number (uint32) and its name (40 bytes, of `swap_names`).

        Every rank must have the blocks. Call it on a new scheduler, or after `lose_device`. Raises `SchedulerError` for
        a block or group that does not exist, and for a block in use.
        """
    def propose(self, client: int, request: int, sample: int, drafts: Buffer) -> None:
        """Propose the tokens (int32) after a sample's last known one; its next row verifies them.

        Drafts change no answer, only how many tokens a step gives. Raises `SchedulerError` if the sample has a step in
        flight or no output yet.
        """
    def offer_load(self, client: int, request: int, num_tokens: int, *, asynchronous: bool) -> None:
        """The keys and values of a request's first `num_tokens` tokens can be loaded from outside.

        If the load is asynchronous, the request waits for it. Else it must end before the step that reads it.

        Raises `SchedulerError` without prefix caching, and while the request runs or loads.
        """
    def take_loads(self) -> list[dict[str, Any]]:
        """The new loads of plans: id, client, request, first_token, num_tokens, blocks, step.

        `blocks` has int32 bytes for each group: every block of these tokens, or with a window the last ones, which
        later tokens still read. `step` reads the blocks, so the load must end before it; None: the request waits for
        `finish_load`.
        """
    def finish_load(self, load: int, num_tokens: int) -> None:
        """A load has ended with its first `num_tokens` tokens in place; the others are computed.

        Raises `SchedulerError` if it is not under way.
        """
    def take_saves(self) -> list[tuple[int, bytes, int, int, int, Literal["default", "long"]]]:
        """Full blocks of committed steps to save outside: id, hash (32 bytes), group, index in its chain, block, and
        the retention that a request asked for.

        Each is kept, and no step writes it, until `finish_save`; there are at most `max_saving_blocks` at once. Blocks
        that are evicted before, or that requests need, are not saved. A block is listed again when a request with a
        longer retention finds it.
        """
    def finish_save(self, save: int) -> None:
        """A save has ended, with or without success. Raises `SchedulerError` if it is not under way."""
    def known_prefix(self, client: int, request: int) -> tuple[int, list[bytes]]:
        """The number of a request's tokens that the prefix cache has now, and the hashes of its full blocks.

        The blocks are those that could be loaded, from the first on: of the prompt, and of the output if there is one
        unfinished sample. Raises `SchedulerError` if there is no such request.
        """
    def prefill_seconds(self, num_tokens: int) -> float | None:
        """Seconds that computing so many tokens of a prompt takes; None before any was measured."""
    def pin(self, name: int, prompt: bytes, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> int:
        """Keep the full blocks of a prefix (packed int32) from eviction, now and once computed; gives their number.

        Raises `SchedulerError` beyond `max_pinned_blocks`, for a name in use, and without prefix caching.
        """
    def unpin(self, name: int) -> bool:
        """Let a pinned prefix be evicted. False: there is no such pin."""
    def reset_prefix_cache(self) -> None:
        """Forget all cached contents, on the device and the host. What runs keeps its blocks."""
    def events(
        self, first: int, limit: int, tokens: bool = True
    ) -> tuple[int, int, list[tuple[str, bytes, bytes | None, bytes, str, int]]]:
        """Incarnation, number of the first event, and at most `limit` of the prefix cache's events from `first` on.

        An event is its kind ("stored", "removed", "cleared"), hash, parent's hash (None: the first block), tokens
        (int32; empty unless wanted), tier ("device", "host") and group. Empty unless `enable_kv_cache_events`. The last
        100,000 are kept: a first number above the one asked for means that events were dropped, take a `snapshot` then.
        """
    def event_batch(
        self,
        seconds: float,
        first: int | None = None,
        *,
        rank: int = 0,
        is_array: bool = False,
        has_integer_hashes: bool = False,
        has_tokens: bool = False,
    ) -> tuple[int, bytes] | None:
        """The number of the next event, and all from `first` on as a batch of vLLM (msgpack); None: there are none.

        Without `first`, and where events from it on were dropped, `AllBlocksCleared` and the whole cache. `seconds` is
        the batch's time, an event is a map unless `is_array`, a hash is bytes unless `has_integer_hashes`.
        """
    def snapshot(self, tokens: bool = True) -> tuple[int, int, list[tuple[str, bytes, bytes | None, bytes, str, int]]]:
        """Incarnation, number of the next event, and what the prefix cache knows now, as "stored" events."""
    def load_report(self, number: int) -> tuple[int, bytes, bytes]:
        """What `Placement.update_core` takes: the next number, changes of the prefix cache since `number`, the load.

        With -1, or a number whose changes are not kept any more (the last 131,072 are), the cache is told from its
        beginning: "cleared", then all that is stored, in as many calls as it takes. One call tells of at most 16,384
        changes or blocks (150 kB); while the next number is not the one asked with, ask again, there may be more. A
        number is of one scheduler alone. The first call begins to keep changes, and any number of readers may ask.

        The changes are of both tiers together, as eight bytes of each block's hash. The load is what waits, runs, is
        held or swapped: tokens to compute and outputs that are expected, by tenant under "fair", the 256 tenants with
        the most work by name; beside it how long the last steps took. It takes time with the sequences, so that with
        thousands it may be a few calls old, one for each 1,000.
        """
    def explain(self, client: int, request: int) -> list[dict[str, Any]]:
        """Where each sample of a request stands: sample, state, reason, hold, num_tokens, num_computed, num_known.

        `hold` has the names of those who hold it, by commas, or None.
        `num_tokens` is its share of the last step; if that is 0, `reason` says why. Raises `SchedulerError` if there is
        no such request.
        """
    def requests(self, limit: int, name: str | None = None) -> list[dict[str, Any]]:
        """All requests that live, in the order in which they came, then the last 1,000 that have ended, latest first.

        At most `limit` of them, and only those of a `name` if one is given.

        Each has `client`, `request`, `name`, `tenant`, `priority`, `num_samples`, `num_prompt_tokens`,
        `num_output_tokens` (of all samples), `num_cached_tokens` (of the prompt, found in the prefix cache when it was
        first admitted), `num_blocks` (on the device, shared ones included), `num_preemptions`, and in the seconds of
        `schedule`'s clock `arrival`, `scheduled_at` (None: no step has computed any of it) and `ended_at`. `finish` is
        how its last sample ended (stop, length, abort or deadline), None while it lives; then `samples` are as
        `explain` has them.
        """
    def take_ended(self) -> list[dict[str, Any]]:
        """The requests that have ended since the last call, oldest first, as `requests` has them.

        Of more than 1,000 only the last ones.
        """
    def block_owners(self) -> dict[str, Any]:
        """The blocks of the device by owner: `tenants` (a number by name), `pinned`, `in_transit` and `free`.

        The numbers add up to all blocks. One that several requests of a tenant share counts once. Pinned are those that
        no request uses; in transit are copies that end with the steps in flight, and blocks that a load writes to.
        Takes time with the blocks in use.
        """
    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """What the last steps decided, oldest first: at most `limit`, and 1,024. Those that planned nothing count, too.

        Each has step, now, num_rows, num_tokens and of those num_prefill_tokens, num_admitted, num_preempted and of
        those num_swapped, num_running, num_waiting, num_free_blocks, and stop: why the first in the queue was not
        admitted.
        """
    def tenants(self) -> list[tuple[str, int, int]]:
        """Tenant, service in tokens by cost and weight, and sequences in the queue; by tenant under "fair" only."""
    def start_recording(self) -> None:
        """Keep every input from now on. Raises `SchedulerError` unless the scheduler is new."""
    def take_recording(self) -> bytes:
        """What was recorded since the last call; the parts together are what `replay` reads."""
    def stats(self) -> dict[str, int]:
        """Gauges and counters. Sequences (samples), not requests, run, wait and are held.

        Gauges: `num_requests`, `num_running`, `num_waiting` (preempted and swapped included), `num_held`, `num_paused`
        (beams that were preempted and wait for their siblings), `num_loading`; `num_blocks`, `num_free_blocks` (with
        those that the prefix cache still knows), `num_used_blocks`, `num_cached_blocks`, `num_pinned_blocks`,
        `num_saving_blocks`; `num_host_blocks`, `num_free_host_blocks`, `num_cached_host_blocks`;
        `num_speculative_tokens`. Counters: `num_preemptions` and of those `num_swapped` and `num_ended_preemptions` (of
        requests that have ended), `num_expired` (by deadline), `prefix_queries`, `prefix_hits` and of those
        `host_prefix_hits` and `loaded_prefix_hits` (tokens, at first admission), `num_uncached_tokens` (likewise),
        `num_computed_tokens`, `num_steps`, `num_drafts`, `num_accepted_drafts`, `num_failed_loads`, `num_saves` and
        `num_dropped_saves` (blocks). Counters by bound: `iteration_tokens_le_1`, `_8`, `_16`... `_16384`, `_inf`: steps
        that computed at most so many tokens, and at least one; `accepted_drafts_le_0`... `_15`, `_inf`: rows with
        drafts of which so many became output; `request_preemptions_le_1`... `_5`, `_10`, `_20`, `_inf`: requests that
        have ended.
        """
    def num_uncomputed_tokens(self) -> int:
        """Known tokens of all sequences that are still to be computed. Takes time for each sequence."""
    def fragmentation(self) -> dict[str, int]:
        """`num_empty_slots` of blocks in use; `num_free_runs`: free blocks that lie together count as one;
        `longest_free_run` in blocks; and `num_empty_host_slots`, `num_free_host_runs`, `longest_free_host_run`.

        Takes time for each block, some 2 ns.
        """

@final
class RequestHasher:
    """Names the full blocks of prompts as a scheduler with these settings does.

    Raises `ValueError` for a block size of 0, and `SchedulerError` for settings that no core could have.
    """

    def __new__(
        cls, *, block_size: int, prefix_hash: str = "blake3", prefix_hash_seed: str = "", cache_namespace: str = ""
    ) -> Self: ...
    def hashes(self, prompt: bytes, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> list[bytes]:
        """32 bytes for each full block, from the first on, by all tokens up to its last one; the prompt is int32."""

@final
class Placement:
    """Chooses a core for each request of a client: the one where it costs the least seconds until it is done.

    That is the work it waits for, its prompt but for what is cached there, and its expected output, by the measured
    speed of the core. Under "fair" that is its tenant's work there and its own, and what others are served beside it by
    their weights. Costs within a step, or 10 percent, are equal: then the longest cached prefix decides, then the
    session, by rendezvous hashing, or without one the fewest requests, and the lowest number. So the work on two cores
    differs by no more than the last request placed and the tolerance, whatever is cached where.

    It has no clock, no randomness and no I/O. Methods may be called from any thread; a refused call raises `ValueError`
    and changes nothing.
    """

    def __new__(
        cls, *, block_size: int, prefix_hash: str = "blake3", prefix_hash_seed: str = "", cache_namespace: str = ""
    ) -> Self:
        """The settings are the cores' own. Raises `ValueError` for one that no core could have."""
    def add_core(self, core: int) -> None:
        """A core. Until its first load report its cache is empty, it is idle and as fast as the others.

        Raises `ValueError` if it is there already, or 64 are.
        """
    def remove_core(self, core: int) -> None:
        """Forget a core, its cache, and the requests placed there. Raises `ValueError` if it is not there.

        For a core that started anew: remove it, add it, and ask its scheduler with number -1.
        """
    def update_core(self, core: int, last_request: int, changes: bytes, load: bytes) -> None:
        """What `Scheduler.load_report` of this core gave, every part in order.

        Requests of this client up to `last_request` (-1: none) are in the load; the work of later ones that were placed
        there is added to it. Raises `ValueError` if the core is not there, or the bytes do not read.
        """
    def place(
        self,
        request: int,
        prompt: bytes,
        max_tokens: int,
        cores: Sequence[int],
        *,
        num_samples: int = 1,
        tenant: str = "",
        cache_salt: str = "",
        adapter: str = "",
        session: str = "",
    ) -> tuple[int, int]:
        """Choose one of `cores` for a request: the core, and the tokens of the prompt that it should have cached.

        Those count that requests placed there before are about to compute. Ids are used once and rise; a request that
        moves to another core gets a new one. Raises `ValueError` for no cores, one that is not there, or an id that is
        not above all before.
        """
    def ended(self, request: int) -> None:
        """A request has ended, or never came to where it was placed. An unknown id is ignored."""
    def start_recording(self) -> None:
        """Keep every input from now on. Raises `ValueError` unless the placement is new."""
    def take_recording(self) -> bytes:
        """What was recorded since the last call; the parts together are what `replay` reads."""
    @staticmethod
    def replay(recording: bytes) -> dict[str, Any]:
        """Repeat all calls of a recording on a new placement: num_entries, num_choices, hash, is_truncated.

        Raises `ValueError` with the first entry that cannot be decoded or chooses another core.
        """

def replay(recording: bytes) -> dict[str, Any]:
    """Repeat all calls of a recording on a new scheduler: num_entries, num_steps, hash, is_truncated, stats.

    Raises `SchedulerError` with the first entry that cannot be decoded or decides something else.
    """
