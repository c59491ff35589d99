"""The scheduler, written in Rust: `rust/pyllm-scheduler` behind the thin shim `rust/pyllm-python`.

Integers are little-endian. Token ids are packed int32. Methods may be called from any thread; all but `take_deltas`
release the interpreter lock while they work. A refused call raises `SchedulerError` and changes nothing; an argument of
another type raises `TypeError`.
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
    "xxh3",
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
    """The plan of one step: a read-only buffer of `SECTIONS`, each starting at the next multiple of 64 bytes.

    With T tokens, R rows (sequences), S sampled positions, K table changes, F slot copies, C block copies, W swaps and
    I slot initialisations, the sections hold:

    - `tokens` [T], -1 for the slot's last sampled token; `positions` [T]
    - `slot_mapping` [groups * T], block * block_size + offset: the cells of keys and values, one group after another
    - `query_starts` [R + 1]; `sequence_lengths` [R], including this step's tokens; `slots` [R]
    - `logits_rows` [S], indices into `tokens`; `sampled_starts` [R + 1]; `uniforms` [S], float32 in (0, 1)
    - `table_slots`, `table_indices`, `table_blocks` [K]: block_tables[row][index] = block; the row of a group and a
      slot is group * max_num_seqs + slot
    - `block_copies` [2 * C], (source, destination) pairs
    - `swaps` [3 * W], (direction, block, host block) triples: 0 copies to the host, 1 from it; all of 0 come first
    - `slot_copies` [2 * F], (source, destination) pairs
    - `slot_inits` [I], slots; `sampling_starts` [I + 1]; `sampling`, the bytes given to `add`, concatenated
    - `history_starts` [I + 1]; `histories`, all known tokens of stateful requests, prompt and output, concatenated;
      `prompt_lengths` [I], tokens of each slot's prompt
    - `adapter_slots` [I], of each initialised slot's adapter: the slot of the device that it is in, or -1 without one;
      `adapter_loads` [2 * loads], (slot of the device, adapter's number) pairs; both are empty without `max_loras`

    A worker applies slot copies, adapter loads, slot initialisations, table changes, swaps and block copies, in that
    order, then computes. An initialisation comes with the slot's whole block-table row. A slot copy copies the row, the
    sampling state and the adapter's slot of the device. Slot copies read every source before any destination is
    written; block copies may run at once.
    """

    @property
    def step(self) -> int:
        """The step's id, for `Scheduler.commit`."""
    @property
    def counts(self) -> list[int]:
        """Elements in each section."""
    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
    @property
    def num_rows(self) -> int:
        """The number of rows, R."""

@final
class Scheduler:
    """Plans every step and manages the blocks of the KV cache. It has no clock, no randomness and no I/O."""

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
        num_states: int = 0,
        num_host_states: int = 0,
        state_checkpoint_blocks: int = 0,
        enable_prefix_caching: bool = True,
        max_pinned_blocks: int = 0,
        prefix_hash: str = "blake3",
        prefix_hash_seed: str = "",
        cache_namespace: str = "",
        max_saving_blocks: int = 0,
        separate_outputs: bool = False,
        whole_prompts: bool = False,
        enable_kv_cache_events: bool = False,
        incarnation: int = 0,
        swap_block_seconds: float = 0.0,
        swap_state_seconds: float = 0.0,
        num_speculative_tokens: int = 0,
        pipeline_parallel_size: int = 1,
        max_loras: int = 0,
        long_prefill_token_threshold: int = 0,
        inter_token_target: float = 0.0,
        policy: str = "fcfs",
        tenant_weights: Mapping[str, int] = ...,
        weights_version: str = "",
        pause: str = "none",
        watermark: float = 0.0,
        expected_growth: float = 0.0,
    ) -> Scheduler:
        """Sizes are counts: tokens per block, blocks, slots, tokens per step, tokens per sequence, token ids.

        Each of `kv_groups` is some layers with their own blocks for the same tokens, with `{"window": positions}` if
        they have a sliding window; by default there is one group without a window.

        A model with layers that keep a state of all tokens before has `num_states` for all sequences, at least 2.
        States stay for the prefix cache where a prompt ends, where a second one branches off, after the last block of
        an output, and every `state_checkpoint_blocks` blocks of a prompt (0: nowhere else).

        `num_host_blocks` and `num_host_states` are swap space and second tier of the prefix cache; moving one there and
        back takes `swap_block_seconds` or `swap_state_seconds`. Pins may keep `max_pinned_blocks` from eviction, and a
        state each, half of them at most. `prefix_hash` is blake3, or sha256_cbor for vLLM's names of blocks, with
        `prefix_hash_seed` as PYTHONHASHSEED; with blake3 `cache_namespace` is a part of each name. With
        `separate_outputs` the blocks of an output are found only by requests with the same prompt. With `whole_prompts`
        a step has all tokens of a prompt, or none.
        `max_saving_blocks` is the limit of blocks that `take_saves` keeps. `incarnation` names this run in its events.
        A sequence that runs alone has up to `num_speculative_tokens` drafts a row (0 to 16) by prompt lookup. With
        several stages (`pipeline_parallel_size`) a sequence waits for its token before it is planned again, and each
        step has its share of the running sequences: keep as many steps in flight. Running sequences have at most
        `max_loras` adapters at once, each in a slot of the device (0: no adapters). `reconfigure` explains the others.

        Raises `SchedulerError` for a value out of its range, `TypeError` for one of another type and for an unknown
        setting.
        """
    def longest_sequence(self) -> int | None:
        """Length in tokens of the longest sequence that fits into the KV cache; None if windows let any length fit."""
    def reconfigure(
        self,
        *,
        max_num_batched_tokens: int = ...,
        long_prefill_token_threshold: int = ...,
        inter_token_target: float = ...,
        policy: str = ...,
        tenant_weights: Mapping[str, int] = ...,
        weights_version: str = ...,
        pause: str = ...,
        watermark: float = ...,
        expected_growth: float = ...,
    ) -> None:
        """Change live settings, from the next step on; others stay.

        - `max_num_batched_tokens`: tokens in a step; `long_prefill_token_threshold`: of one prompt (0: no limit)
        - `inter_token_target`: largest number of seconds between two tokens of a stream during prefills (0: no limit),
          by the step times given to `commit`; a request's `tpot_target` takes precedence
        - `policy`: "fcfs"; "priority": lowest first, then least slack (without targets: to a first token after 10 s),
          preempts; "shortest": least remaining work, preempts; "fair": by tenant, with `tenant_weights` (default 1);
          "custom": lowest `policy_key`
        - `weights_version`: of the model; a new one recomputes all running sequences, and empties the prefix cache
        - `pause`: "new" keeps requests from beginning, "all" also stops those that have begun: there is no plan
        - `watermark`: share of the blocks, 0 to 0.99, that admission leaves free while a sequence runs;
          `expected_growth`: share, 0 to 16, of the running sequences' expected growth that it leaves room for

        Raises `SchedulerError` for a value out of its range or a setting that is not live; then no setting changes.
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
        adapter_number: int = 0,
        stateful: bool = False,
        prompt_logprobs: bool = False,
        num_logprobs: int = 0,
        beam_width: int = 0,
        length_penalty: float = 1.0,
        pooling: str = "none",
        name: str = "",
        kv_cache_retention: str = "default",
    ) -> None:
        """Queue a request, fresh or resumed. `(client, request)` is its key: uint32, uint64, never used again.

        Token ids are below `vocab_size`, except in `stop_token_ids`. `seed` is a uint64. `n` is at most `max_num_seqs`.
        `outputs` resumes a request: the tokens of each of the `n` samples, which count for `max_tokens`, and whether it
        has finished. A stop token ends a sample and is part of its output; before `min_tokens` it does not. `sampling`
        is passed to the worker unchanged. `arrival` and `deadline`, at which it ends unfinished, are in the seconds of
        `schedule`'s clock. Targets are seconds to the first token and from token to token; some policies use
        `priority`, `policy_key` and targets, see `reconfigure`. Requests share cached blocks if `tenant`, `cache_salt`
        and `adapter` are all equal. `adapter` is the name of an adapter with the digest of its weights, and
        `adapter_number` the caller's number for that text, above 0: plans name the adapter by it.

        The worker of a `stateful` request gets all known tokens when its slot is initialised, and may sample none, or
        more than planned, see `commit`. With `prompt_logprobs` the whole prompt is computed, even if it is cached.
        `num_logprobs` is the largest number of log-probabilities with a token, its own included: they limit the rows
        and prompt tokens of a step, and such streams take turns.

        With a `beam_width`, equal to `n`, the samples are the results of a beam search, best first by log-probability /
        length ** `length_penalty`. They are reported at its end only, each token with its log-probability and its rank
        among the candidates. It can be neither stateful nor resumed, and excludes `prompt_logprobs`.

        `pooling` (none, last or mean) asks for the prompt's embedding: `max_tokens` is 0, the prompt may fill
        `max_model_len`, and the step that computes its last token ends the request. All options for output are
        excluded. For the mean the whole prompt is computed, even if it is cached, and without interruption.

        `kv_cache_retention` is none, default or long. `take_saves` returns it with each of the request's blocks; with
        none they are not saved.

        Raises `NeverFitsError` if it could not run even alone, `SchedulerError` for any other wrong argument.
        """
    def abort(self, client: int, request: int, sample: int = -1) -> bool:
        """End a request, or one sample of it (-1: all), with a final delta; a beam search ends as a whole.

        False: no such request lives; it has probably finished. This is no error, as a client may be late.
        """
    def hold(self, client: int, request: int, holder: str) -> None:
        """Keep a request from running until the same holder's `release`; its running sequences are preempted.

        Several holders may hold it at once. Raises `SchedulerError` if there is no such request, or this holder holds
        it already.
        """
    def release(self, client: int, request: int, holder: str) -> None:
        """End a holder's hold; after the last one the request returns to its place in the queue.

        Raises `SchedulerError` if there is no such request, or this holder does not hold it.
        """
    def isolate(self, client: int, request: int) -> None:
        """Separate this request's rows from all others', step by step, in turns while both have work.

        The isolation lasts until each of its live samples has one more token, or it ends, or is held from now on; a
        lost device does not end it. If it is held already, the isolation begins after the release. Raises
        `SchedulerError` if there is no such request, or if any request is isolated.
        """
    def isolated(self) -> tuple[int, int] | None:
        """Client and request of the isolated request, if any."""
    def drop_client(self, client: int) -> None:
        """End all requests of a disconnected client, and drop its deltas."""
    def schedule(self, now: float) -> Plan | None:
        """Plan the next step; None if none is possible before a commit or a new request.

        May be called again before the step is committed. Raises `SchedulerError` if `now` (seconds) goes back.
        """
    def expire(self, now: float) -> None:
        """End the requests at their deadline, as `schedule` does, for times in which no step can be planned.

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
        """Commit the oldest step in flight: row i of its plan sampled `tokens[starts[i]:starts[i + 1]]` (int32 both).

        A row with drafts may have sampled fewer positions than planned; drafts are accepted while they equal the
        sampled tokens. A row of a stateful request may have no tokens, if the worker was not ready: its last token is
        planned again, and its rows in flight are void. If it has one sample, it may have any number of tokens, all of
        which count up to the sample's end: the accepted drafts, the sampled token, and tokens that are forced to
        follow. Tokens of sequences that ended meanwhile are dropped. `seconds` is the measured duration of the step, 0
        if unknown. `logprobs`: the columns of `messages.Logprobs`; each token of a prompt once since its slot was
        initialised, in order, from the second on; for a beam's row the 2 * `beam_width` likeliest candidates of its
        first position, with which it continues. `embeddings`: the columns of `messages.Embeddings`; each row that pools
        and samples has one, and its sampled token does not count. Returns the clients with pending deltas. Raises
        `SchedulerError`, and changes nothing, if the step is not in flight or not the oldest, or the shape does not
        fit its plan.
        """
    def request_of(self, step: int, row: int) -> tuple[int, int] | None:
        """Client and request of a row in a step in flight; None if the request has ended meanwhile.

        Raises `SchedulerError` if the step is not in flight, or has no such row.
        """
    def requests_in_flight(self) -> list[tuple[int, int]]:
        """Client and request of the rows in steps in flight, each once, if they have not ended meanwhile."""
    def note_step(self, plan: Plan, note: Buffer) -> None:
        """Write a trace of a step in flight into a writable buffer of uint32, for `supervision/step_trace.py`.

        The words are a checksum (two), the step (two), its tokens and its rows; then client and request (two) of as
        many rows as fit. Raises `SchedulerError` if the step is not in flight, or the buffer is too short.
        """
    def expected_seconds(self, step: int) -> float | None:
        """The expected duration of a step in flight, from measured steps; None if they do not suffice.

        Raises `SchedulerError` if the step is not in flight.
        """
    def history(self, client: int, request: int) -> tuple[bytes, list[bytes]]:
        """The tokens (int32) of a request: its prompt, and the output of each sample that is a sequence of its own.

        Raises `SchedulerError` if there is no such request.
        """
    def pending_clients(self) -> list[int]:
        """The clients with pending deltas, longest waiting first."""
    def take_deltas(self, client: int) -> tuple[bytes, ...] | None:
        """A client's new output since the last call; None if there is none.

        There is one row per sample, and before it one more for log-probabilities of its prompt. The columns are:
        request ids (uint64), samples (int32), offsets of the first new token in the sample's output (int32, negative if
        a row begins with tokens of the prompt), token starts (int32, one more than rows), tokens (int32), finish codes
        (uint8: 0 unfinished, 1 stop, 2 length, 3 abort, 5 deadline), prompt tokens found in the prefix cache at first
        admission (int32); then log-probabilities, all empty if no token has any: starts (int32, one more than tokens),
        ids (int32), values (float32), ranks (int32); then embeddings, both empty if no row has one: starts (int32, one
        more than rows), values (float32); then the first rows of the output of requests that are not resumed, if any:
        their indices (int32), seconds from arrival to the first step, and from there to the output (float32 both).
        Holds the interpreter lock meanwhile.
        """
    def lose_device(self) -> None:
        """Handle the loss of the device: running sequences return to the queue, to be recomputed from their tokens.

        The steps in flight can no longer be committed, and all blocks, of device and host, lose their contents. If host
        memory survived, `restore_host_blocks` restores its contents.
        """
    def restore_host_blocks(self, blocks: bytes) -> None:
        """Restore the contents of host blocks: each is its number (uint32) and its name (40 bytes, from `swap_names`).

        States are among them, with names from `state_swap_names`.

        The blocks must have survived on every rank. Call it on a new scheduler, or after `lose_device`. Raises
        `SchedulerError` for a block or group that does not exist, and for a block in use.
        """
    def propose(self, client: int, request: int, sample: int, drafts: Buffer) -> None:
        """Propose tokens (int32) after a sample's last known one; its next row verifies them.

        Drafts change no answer, only the number of tokens in a step. Raises `SchedulerError` if the sample has a step
        in flight or no output yet.
        """
    def offer_load(self, client: int, request: int, num_tokens: int, *, asynchronous: bool) -> None:
        """Offer to load the keys and values of a request's first `num_tokens` tokens from an external store.

        If the load is asynchronous, the request waits for it. Otherwise it must end before the step that reads it. It
        is used if the prefix cache has fewer tokens.

        Raises `SchedulerError` without prefix caching, and while the request runs or loads.
        """
    def take_loads(self) -> list[dict[str, Any]]:
        """The loads that plans have started since the last call.

        Each has id, client, request, first_token, num_tokens, blocks and step. `blocks` has int32 bytes for each group:
        every block of these tokens, or with a window the last ones, which later tokens still read. `step` reads the
        blocks, so the load must end before it; None: the request waits for `finish_load`.
        """
    def finish_load(self, load: int, num_tokens: int) -> None:
        """End a load, with its first `num_tokens` tokens in place; the others are computed.

        Raises `SchedulerError` if there is no such load.
        """
    def take_saves(self) -> list[tuple[int, bytes, int, int, int, Literal["default", "long"]]]:
        """Begin saves of blocks that committed steps have filled: id, hash (32 bytes), group, index in its chain,
        block, and the retention that a request asked for.

        Each block is kept, and no step writes it, until `finish_save`; there are at most `max_saving_blocks` at once.
        Blocks that are evicted before, or that requests need, are not saved. A block is listed again when a request
        with a longer retention finds it.
        """
    def finish_save(self, save: int) -> None:
        """End a save, with or without success. Raises `SchedulerError` if there is no such save."""
    def known_prefix(self, client: int, request: int) -> tuple[int, list[bytes]]:
        """The number of a request's tokens that the prefix cache has now, and the hashes of its full blocks.

        These are all full blocks that could be loaded, from the first on: those of the prompt, and of the output if
        there is one unfinished sample. Raises `SchedulerError` if there is no such request.
        """
    def prefill_seconds(self, num_tokens: int) -> float | None:
        """Expected seconds to compute `num_tokens` of a prompt; None before any measurement."""
    def pin(self, name: int, prompt: bytes, *, tenant: str = "", cache_salt: str = "", adapter: str = "") -> int:
        """Keep the full blocks of a prefix (packed int32) from eviction, now or once computed; return their number.

        Raises `SchedulerError` beyond `max_pinned_blocks`, for a name in use, and without prefix caching.
        """
    def unpin(self, name: int) -> bool:
        """Remove a pin. False: there is no such pin."""
    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache, on the device and the host. Running sequences keep their blocks."""
    def events(
        self, first: int, limit: int, tokens: bool = True
    ) -> tuple[int, int, list[tuple[str, bytes, bytes | None, bytes, str, int]]]:
        """Incarnation, number of the first event, and at most `limit` of the prefix cache's events from `first` on.

        An event is its kind ("stored", "removed", "cleared"), hash, parent's hash (None: the first block), tokens
        (int32; empty without `tokens`), tier ("device", "host") and group. None unless `enable_kv_cache_events`. The
        last 100,000 are kept: if the returned first number is above `first`, events were dropped; take a `snapshot`.
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
        """The number of the next event, and all events from `first` on, as a batch of vLLM (msgpack); None without any.

        Without `first`, or if events from it on were dropped, the batch is `AllBlocksCleared` and the whole cache.
        `seconds` is the batch's time, an event is a map unless `is_array`, a hash is bytes unless `has_integer_hashes`.
        """
    def snapshot(self, tokens: bool = True) -> tuple[int, int, list[tuple[str, bytes, bytes | None, bytes, str, int]]]:
        """Incarnation, number of the next event, and the contents of the prefix cache, as "stored" events."""
    def load_report(self, number: int) -> tuple[int, bytes, bytes]:
        """The input of `Placement.update_core`: the next number, changes of the prefix cache from `number` on, and the
        load.

        With -1, or a number that is too old (the last 131,072 changes are kept), the report is a snapshot: it clears
        everything, then adds the stored blocks, in as many calls as needed. A call returns at most 16,384 changes or
        blocks (150 kB); call again until the next number equals `number`. Numbers are valid for one scheduler. The
        first call starts the log of changes; any number of readers may call this.

        Changes are for both tiers together, as eight bytes of each block's hash. The load covers waiting, running, held
        and swapped sequences: tokens to compute and expected outputs, by tenant under "fair", the 256 tenants with the
        most work by name; and the durations of the last steps. It takes time for each sequence, so with thousands it
        may be a few calls old, one for each 1,000.
        """
    def explain(self, client: int, request: int) -> list[dict[str, Any]]:
        """The state of each sample of a request: sample, state, reason, hold, num_tokens, num_computed, num_known.

        `hold` has the names of its holders, separated by commas, or None. `num_tokens` is its tokens in the last step;
        if that is 0, `reason` explains it. Raises `SchedulerError` if there is no such request.
        """
    def requests(self, limit: int, name: str | None = None) -> list[dict[str, Any]]:
        """The live requests, in order of arrival, then the last 1,000 that have ended, latest first.

        At most `limit` of them, and only those of a `name` if one is given.

        Each has `client`, `request`, `name`, `tenant`, `priority`, `num_samples`, `num_prompt_tokens`,
        `num_output_tokens` (of all samples), `num_cached_tokens` (of the prompt, found in the prefix cache when it was
        first admitted), `num_blocks` (on the device, shared ones included), `num_preemptions`, and in the seconds of
        `schedule`'s clock `arrival`, `scheduled_at` (None before its first step) and `ended_at`. `finish` is the finish
        reason of its last sample (stop, length, abort or deadline), None while it lives; then `samples` are those of
        `explain`.
        """
    def take_ended(self) -> list[dict[str, Any]]:
        """The requests that have ended since the last call, oldest first, in the form of `requests`.

        At most the last 1,000.
        """
    def block_owners(self) -> dict[str, Any]:
        """The device blocks by owner: `tenants` (a number by name), `pinned`, `in_transit` and `free`.

        The numbers add up to all blocks. A block that several requests of a tenant share counts once. Pinned blocks are
        those that no request uses; blocks in transit are copies that end with the steps in flight, and targets of
        loads. Takes time proportional to the blocks in use.
        """
    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The last decisions, oldest first, at most `limit`, and 1,024; including those without a plan.

        Each has step, now, num_rows, num_tokens and of those num_prefill_tokens, num_admitted, num_preempted and of
        those num_swapped, num_running, num_waiting, num_free_blocks, and stop: the reason why the first in the queue
        was not admitted.
        """
    def tenants(self) -> list[tuple[str, int, int]]:
        """Tenant, service in tokens by cost and weight, and queued sequences; by tenant under "fair" only."""
    def adapter_counts(self) -> list[tuple[int, int, int]]:
        """Number, running sequences and other sequences, held ones included, of each adapter, by number.

        Those are the adapters that have a live request or a slot of the device. Takes time linear in the sequences.
        """
    def num_begun(self) -> int:
        """The live requests that have begun: a part of each was computed, here or on an earlier core.

        Takes time linear in the requests.
        """
    def begun_requests(self) -> list[tuple[int, int]]:
        """Client and request of each request that `num_begun` counts, in no particular order."""
    def live_requests(self) -> list[tuple[int, int]]:
        """Client and request of each live request, in no particular order."""
    def start_recording(self) -> None:
        """Record every input from now on. Raises `SchedulerError` unless the scheduler is new."""
    def take_recording(self) -> bytes:
        """The recorded bytes since the last call; concatenated, the parts are one recording, for `replay`."""
    def stats(self) -> dict[str, int]:
        """Gauges and counters. Running, waiting and held ones are sequences (samples), not requests.

        Gauges: `num_requests`, `num_running`, `num_waiting` (preempted and swapped included) and of those
        `num_swapped_out` (with their keys and values on the host), `num_held`, `num_paused` (beams that were preempted
        and wait for their siblings), `num_loading`; `num_blocks`, `num_free_blocks` (with those that the prefix cache
        still knows), `num_used_blocks`, `num_cached_blocks`, `num_pinned_blocks`, `num_saving_blocks`;
        `num_host_blocks`, `num_free_host_blocks`, `num_cached_host_blocks`, and of states `num_states`,
        `num_free_states`, `num_cached_states`, `num_pinned_states` (once for each pin), `num_host_states`,
        `num_free_host_states`, `num_cached_host_states`; `num_speculative_tokens`. Counters:
        `num_preemptions` and of those `num_swapped` and `num_ended_preemptions` (of requests that have ended),
        `num_expired` (by deadline), `prefix_queries`, `prefix_hits` and of those `host_prefix_hits` and
        `loaded_prefix_hits` (tokens, at first admission), `num_uncached_tokens` (likewise), `num_computed_tokens`,
        `num_steps`, `num_drafts`, `num_accepted_drafts`, `num_failed_loads`, `num_saves` and `num_dropped_saves`
        (blocks). Counters by bound: `iteration_tokens_le_1`, `_8`, `_16`... `_16384`, `_inf`: steps that computed at
        most so many tokens, and at least one; `accepted_drafts_le_0`... `_15`, `_inf`: rows with drafts of which so
        many became output; `request_preemptions_le_1`... `_5`, `_10`, `_20`, `_inf`: requests that have ended.
        """
    def num_uncomputed_tokens(self) -> int:
        """Known tokens of all sequences that are not computed yet. Takes time linear in the number of sequences."""
    def fragmentation(self) -> dict[str, int]:
        """Fragmentation of the KV blocks, on the device and on the host: `num_empty_slots` of blocks in use;
        `num_free_runs` of adjacent free blocks; `longest_free_run` in blocks; and `num_empty_host_slots`,
        `num_free_host_runs`, `longest_free_host_run`.

        Takes some 2 ns per block.
        """

@final
class RequestHasher:
    """Computes the hashes of full blocks of prompts like a scheduler with these settings.

    Raises `ValueError` for a block size of 0, and `SchedulerError` for invalid settings.
    """

    def __new__(
        cls, *, block_size: int, prefix_hash: str = "blake3", prefix_hash_seed: str = "", cache_namespace: str = ""
    ) -> Self: ...
    def hashes(
        self, prompt: bytes, *, tenant: str = "", cache_salt: str = "", adapter: str = "", weights_version: str = ""
    ) -> list[bytes]:
        """The hashes of the full blocks (32 bytes each), each over all tokens up to its end; the prompt is int32."""

@final
class Placement:
    """Chooses a core for each request of a client: the one with the fewest expected seconds until it is done.

    The cost is the work before it, the uncached part of its prompt, and its expected output, by the measured speed of
    the core. Under "fair" it is its tenant's work there and its own, and the service of other tenants beside it by
    their weights. Costs within a step, or 10 percent, are equal: then the longest cached prefix decides, then the
    session, by rendezvous hashing, or without one the fewest requests, and the lowest number. So the work on two cores
    differs by no more than the last request placed and the tolerance, whatever the caches hold.

    It has no clock, no randomness and no I/O. Methods may be called from any thread; a refused call raises `ValueError`
    and changes nothing.
    """

    def __new__(
        cls, *, block_size: int, prefix_hash: str = "blake3", prefix_hash_seed: str = "", cache_namespace: str = ""
    ) -> Self:
        """Use the settings of the cores. Raises `ValueError` for an invalid setting."""
    def add_core(self, core: int) -> None:
        """Add a core. Until it reports, it is taken to be empty, idle and as fast as the others.

        Raises `ValueError` if it exists already, or there are 64.
        """
    def remove_core(self, core: int) -> None:
        """Remove a core and all its requests. Raises `ValueError` if the core is not known.

        For a restarted core: remove it, add it, and call its `load_report` with -1.
        """
    def update_core(self, core: int, last_request: int, changes: bytes, load: bytes) -> None:
        """Apply a core's `Scheduler.load_report`; pass every report, in order.

        The load includes this client's requests up to `last_request` (-1: none); the work of later ones that were
        placed there is added to it. Raises `ValueError` if the core is not known, or the bytes cannot be decoded.
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

        These include tokens that requests placed there before will compute. Ids are used once and rise; a request that
        moves to another core gets a new one. Raises `ValueError` for no cores, an unknown core, or an id that is not
        above all before.
        """
    def ended(self, request: int) -> None:
        """Remove a request that has ended, or will not be sent to its core. Unknown ids are ignored."""
    def change_weights(self, version: str) -> None:
        """Change the version of the cores' weights, by which they name blocks from now on."""
    def start_recording(self) -> None:
        """Record every input from now on. Raises `ValueError` unless the placement is new."""
    def take_recording(self) -> bytes:
        """The recorded bytes since the last call; concatenated, the parts are one recording, for `replay`."""
    @staticmethod
    def replay(recording: bytes) -> dict[str, Any]:
        """Repeat all calls of a recording on a new placement: num_entries, num_choices, hash, is_truncated.

        Raises `ValueError` with the first entry that cannot be decoded, is refused, or chooses another core.
        """

def replay(recording: bytes) -> dict[str, Any]:
    """Repeat all calls of a recording on a new scheduler: num_entries, num_steps, hash, is_truncated, stats.

    Raises `SchedulerError` with the first entry that cannot be decoded, is refused, or decides differently.
    """

def xxh3(data: Buffer) -> bytes:
    """The XXH3 of 128 bits of contiguous bytes, 16 bytes with the highest first, as in Python's `xxhash`.

    https://github.com/Cyan4973/xxHash. Releases the interpreter lock; nothing may write to `data` meanwhile.
    """
