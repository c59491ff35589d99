"""The wire: every message between clients, core and workers. Knows no sockets (`wire/ipc.py`) and no behaviour.

Structs are tagged msgpack arrays, so a new field goes last. Columns and token ids travel as packed little-endian
bytes (int32 unless a field says otherwise), so no message holds a Python list as long as a prompt or a batch.
"""

from enum import IntEnum
from typing import Any, Literal

import msgspec

PROTOCOL_VERSION = 2
CLEARING_TOKENS = 8  # of each sample: after this many from a core, a request is not suspected of having crashed it
LOSSES_TO_RUN_ALONE = 2  # cores in a row that were lost with a request, after which the next one runs it by itself
RESERVATION = 5.0  # seconds that one `Reserve` lasts
MAX_REQUEST_REPORTS = 2000  # in one reply to the call `requests`


# Of a pause. "wait": requests that have begun end first; "abort": all end at once; "keep": they stay as they are.
PauseMode = Literal["abort", "wait", "keep"]
# Of a change of the weights: requests that have begun end with those before, go on with the new ones, or end at once.
SwitchMode = Literal["finish", "continue", "abort"]


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag=True):
    """Base of all messages."""


class FinishCode(IntEnum):
    """The finish reason of a sample in `Deltas.finishes`; 0 while it is running."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    DEADLINE = 5


class Sampling(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The sampling parameters for workers. The core and the scheduler pass it on as opaque bytes.

    Each of `bad_words` is a sequence of token ids; its last one may not follow the others. `stop_token_ids` may not be
    sampled before `min_tokens` of output. `logprobs` and `prompt_logprobs` are the number of likeliest tokens to report
    beside the token itself; None: no log-probabilities. `logprob_token_ids` are reported in place of the likeliest.
    `grammar` is llguidance's text; "": none. `extra_args` are arguments of logits processors, by their names. `pooling`
    "last", "mean" or "cls" requests the prompt's embedding in place of tokens, see `POOLING`. After `thinking_budget`
    tokens of reasoning the first of `thinking_ends` is forced; without ends there is no bound. The model reasons if one
    of `thinking_starts` ends its prompt or begins its output, or if there are no starts.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: bytes = b""
    bad_words: tuple[bytes, ...] = ()
    min_tokens: int = 0
    stop_token_ids: bytes = b""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    extra_args: dict[str, Any] = {}
    pooling: str = ""
    logprob_token_ids: bytes = b""
    thinking_budget: int = 0
    thinking_starts: tuple[bytes, ...] = ()
    thinking_ends: tuple[bytes, ...] = ()

    @property
    def is_stateful(self) -> bool:
        """Whether a worker must know the request's tokens: changes of logits may depend on them."""
        return self.changes_logits or self.prompt_logprobs is not None

    @property
    def num_logprobs(self) -> int:
        """The maximum number of log-probabilities per token, its own included; 0: none."""
        counts = [count for count in (self.logprobs, self.prompt_logprobs) if count is not None]
        return 1 + max(*counts, len(self.logprob_token_ids) // 4) if counts else 0

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are sampled from other logits than the model's."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words
            or self.min_tokens
            or self.grammar
            or self.extra_args
            or self.thinking_ends
        )


# The sampling parameters of embedding requests by pooling: the last token's hidden state after the final norm, the mean
# of all, or the first token's (cls); scaled to length 1.
POOLING = {kind: Sampling(temperature=0.0, pooling=kind) for kind in ("last", "mean", "cls")}


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of a step's tokens, row by row: first of its prompt tokens, then of its sampled tokens.

    Token i has the entries `starts[i]` to `starts[i + 1]`, none if not requested: first the token itself, whose rank
    counts the tokens at least as likely, then the likeliest ones, best first, with the ranks 1, 2...
    """

    prompt_starts: bytes  # rows + 1
    prompt_tokens: bytes
    starts: bytes
    ids: bytes
    values: bytes  # float32
    ranks: bytes


class Embeddings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step's embeddings: row i has `values[starts[i]:starts[i + 1]]`, empty if it requested none."""

    starts: bytes  # rows + 1
    values: bytes  # float32


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sample of a resumed request: the tokens it has already, and whether it has finished."""

    tokens: bytes
    finished: bool


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The properties and limits of a core's model.

    - `kv_cache_tokens`: the length of the longest sequence that fits into the KV cache.
    - `kv_windows`: for each group of layers with its own KV blocks, how far back it reads; None: to the first token.
    - `labels`, `relevant_class`, `pair_template` and `pair_variables` are as in `EmbeddingSpec`; `class_activation`
      (sigmoid, softmax or identity) makes scores of a classifier's logits.
    - `second_text_offset`: added to the ids of a pair's second text; 0 where the model does not tell texts apart.
    """

    name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    quantization: str
    kv_cache_dtype: str
    block_size: int
    num_blocks: int
    kv_cache_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    max_logprobs: int = 20
    hidden_size: int = 0
    enable_prefix_caching: bool = True
    pooling: str = "last"
    is_matryoshka: bool = False  # embeddings may be cut, to one of `matryoshka_dimensions` unless these are empty
    matryoshka_dimensions: tuple[int, ...] = ()
    kv_windows: tuple[int | None, ...] = (None,)
    model_impl: Literal["native", "transformers"] = "native"
    batch_invariant: bool = False  # a token is bitwise the same whatever else is in the batch
    prefix_hash: str = "blake3"
    prefix_hash_seed: str = ""
    pipeline_parallel_size: int = 1
    cache_namespace: str = ""  # with blake3, a part of the name of every KV block
    saves_kv_blocks: bool = False  # a KV store or connector gets the blocks that are computed
    can_generate: bool = True  # False: the model only embeds, or classifies
    is_for_embeddings: bool = True  # False: embeddings of the model, which generates text, rank nothing
    labels: tuple[str, ...] = ()
    class_activation: str = "identity"
    weights_version: str = ""  # a digest of the weights; empty for those that the engine was started with
    relevant_class: int | None = None
    pair_template: str | None = None
    pair_variables: dict[str, Any] = {}
    second_text_offset: int = 0


# Client to core.


class Hello(Message, frozen=True):
    """The first message on a socket; answered by `Ready`, or by `Rejected` if the version differs.

    With `wants_load_reports` the core sends `LoadReport` from then on.
    """

    version: int
    wants_load_reports: bool = False


class Submit(Message, frozen=True):
    """Start or resume a request. `max_tokens` and `min_tokens` include the tokens in `outputs`; 0 for embeddings.

    In seconds: `age` since arrival, `timeout` from now until it ends unfinished; `ttft_target` from arrival to the
    first token and `tpot_target` from token to token, which a policy may use. `adapter` is the name of one of the
    core's adapters, or its `Adapter.key`, which stays the same adapter on the next core; empty: the model alone.
    """

    epoch: int
    request: int
    prompt: bytes
    seed: int
    max_tokens: int
    sampling: Sampling
    stop_token_ids: bytes = b""
    n: int = 1
    outputs: tuple[Output, ...] = ()
    tenant: str = ""
    priority: int = 0
    age: float = 0.0
    timeout: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    min_tokens: int = 0
    ttft_target: float | None = None
    tpot_target: float | None = None
    beam_width: int = 0  # 0: no beam search; else n is the same number
    length_penalty: float = 1.0
    num_losses: int = 0  # cores in a row that were lost with this request, each after fewer than `CLEARING_TOKENS`
    name: str = ""  # for logs and reports; need not be unique
    kv_cache_retention: str = "default"  # how long a KV store keeps its blocks: none, default or long
    weights_version: str | None = None  # of the weights that `outputs` were computed with; None: any


class Abort(Message, frozen=True):
    """End a request, or one sample of it (-1: all). Answered by a final delta; unknown ids are not an error."""

    epoch: int
    request: int
    sample: int = -1


class Call(Message, frozen=True):
    """Call a method of the core, outside the streams; answered by `Reply` with the same id."""

    epoch: int
    id: int
    method: str
    args: tuple[Any, ...] = ()


class Reserve(Message, frozen=True):
    """Reserve the core for requests that were lost with another one. `LoadReport.reserved_for` tells all clients.

    Lasts `RESERVATION` seconds; ask again to extend it.
    """

    epoch: int


# Core to client.


class Ready(Message, frozen=True):
    """The core accepts requests.

    `fingerprint` is a hash of all that decides a token's logits: the weights at the start (`Checkpoint.fingerprint`),
    the spec, dtype, instruction set and number of ranks. With `ModelInfo.weights_version` it names other weights, too.
    """

    version: int
    epoch: int
    model: ModelInfo
    fingerprint: str


class Adapter(msgspec.Struct, frozen=True, gc=False):
    """A LoRA adapter that requests may name. `path` is as it was given; `digest` is a hash of all of its bytes."""

    name: str
    path: str
    digest: str
    rank: int = 0
    is_listed: bool = True  # False: only requests that began before it was unloaded still use it

    @property
    def key(self) -> str:
        """The adapter in `Submit.adapter`, hashes of blocks and event ids: with other bytes it is another one."""
        return f"{self.name}@{self.digest}"


class AdapterList(Message, frozen=True):
    """All adapters of a core, after `Ready` and after each change; only of a core that serves adapters."""

    epoch: int
    adapters: tuple[Adapter, ...]


class SharedArray(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One array in shared memory that replaces a tensor of this name in the model's files. `kind`: F32, F16, BF16."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class WeightsChanged(Message, frozen=True):
    """The core computes with other weights: `version` is `ModelInfo.weights_version` from now on.

    It comes after all output that was computed with the weights before. `continues`: requests that have begun go on
    with the new ones.
    """

    epoch: int
    version: str
    continues: bool = False


class Deltas(Message, frozen=True):
    """New output for one client, as columns: row i is one sample of one request.

    `token_starts` has one entry more than there are rows; `offsets` is the position of a row's first new token in its
    sample's output, and negative if the row begins with prompt tokens, for their log-probabilities; `cached_tokens`
    counts the prompt tokens found in the prefix cache at first admission. The next four columns are those of
    `Logprobs`, over `tokens`, and empty if no token has any; then those of `Embeddings`, over the rows, and empty if no
    row has one. The last three are for the rows that begin a request's output on this or another core: their indices,
    rising, and the seconds from arrival to the first step and from there to this output.
    """

    epoch: int
    requests: bytes  # uint64
    samples: bytes
    offsets: bytes
    token_starts: bytes
    tokens: bytes
    finishes: bytes  # uint8, `FinishCode`
    cached_tokens: bytes
    logprob_starts: bytes = b""
    logprob_ids: bytes = b""
    logprob_values: bytes = b""  # float32
    ranks: bytes = b""
    embedding_starts: bytes = b""
    embeddings: bytes = b""  # float32
    start_rows: bytes = b""
    queue_seconds: bytes = b""  # float32
    prefill_seconds: bytes = b""  # float32


class LoadReport(Message, frozen=True):
    """A core's load and the changes of its prefix cache, for placement by clients of several cores.

    `changes` and `load` are packed by `Scheduler.load_report`, and read by `Placement.update_core`. The load includes
    this client's requests up to the id `last_request`; `num_requests` counts the requests of all clients.

    Of these, `num_lost_before` were lost with a core before, and have had fewer than `CLEARING_TOKENS` since. For
    `reserved_for` seconds clients send it only requests that were lost with a core, and move the others if another core
    can take them; 0: not reserved.
    """

    epoch: int
    last_request: int
    num_requests: int
    changes: bytes
    load: bytes
    num_lost_before: int = 0
    reserved_for: float = 0.0


class Reply(Message, frozen=True):
    """The answer to a `Call` or a `Control`: a value, or the error's text."""

    id: int
    ok: bool
    value: Any = None


class Rejected(Message, frozen=True):
    """The refusal of a request, or (request None) of a frame or connection.

    `parameter` is the field at fault, if there is one.
    """

    request: int | None
    code: str
    message: str
    parameter: str | None = None


# "alone": steps compute only this request; "aside": others have their turn; "over": it is no longer isolated.
IsolationStage = Literal["alone", "aside", "over"]


class Isolated(Message, frozen=True):
    """Report that a request shares no step with others, as it may have crashed workers or cores."""

    epoch: int
    request: int
    stage: IsolationStage


# Core to workers.


class Step(Message, frozen=True):
    """One scheduler step. The second frame holds the plan: section i has `counts[i]` elements, see `PLAN_SECTIONS`.

    `transfers` is the metadata from the scheduler's half of the KV connector to the workers' halves; empty: none.
    """

    step: int
    counts: tuple[int, ...]
    transfers: bytes = b""


class Control(Message, frozen=True):
    """A call to every rank, in order with the steps; answered by `Reply` with the same id."""

    id: int
    method: str
    args: tuple[Any, ...] = ()


# Workers to core.


class TransferStats(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The figures of a rank's KV connector since its last report. `load_seconds` adds up the threads that load.

    `tiers` has, for each tier of the store, the differences of its counters and the sizes that have changed.
    """

    loaded_bytes: int = 0
    load_seconds: float = 0.0
    saved_bytes: int = 0
    num_unsaved_blocks: int = 0  # blocks that were not saved: no room, or the copy or the store failed
    tiers: dict[str, dict[str, float]] = {}


class TransferResults(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The saves and loads that a rank's KV connector has ended, and the blocks that loads have failed to fill.

    With a `failure` the connector has failed in this rank: its loads and saves never end, and the blocks that it loaded
    for the step of this message may be wrong.
    """

    saves: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()
    error_blocks: tuple[int, ...] = ()
    stats: TransferStats | None = None
    failure: str = ""


class Sampled(Message, frozen=True):
    """The tokens of one step, ragged: row i of the plan sampled `tokens[starts[i]:starts[i + 1]]`.

    A row of a stateful request may have no token if it is not ready to sample: its last token must be planned again. It
    may have more than planned if its grammar forces the next ones. `failures` maps rows whose request cannot continue
    to the reason; their tokens are meaningless. `faults` lists the failed rows whose request is not to blame,
    `parameters` the fields at fault of the others. Tokens of embedding rows are meaningless, too; `embeddings` is None
    if the step has none. `transfers` are results of this rank's KV connector, None if nothing ended.
    """

    step: int
    starts: bytes
    tokens: bytes
    logprobs: Logprobs | None = None
    failures: dict[int, str] = {}
    faults: tuple[int, ...] = ()
    parameters: dict[int, str] = {}
    embeddings: Embeddings | None = None
    transfers: TransferResults | None = None


# Both ways, and from every child to its parent.


class Restarts(Message, frozen=True):
    """The number of restarts of a process, whose id is now `pid`. `reason` says why its predecessor ended.

    `at` is the time of the last restart, in seconds of the machine's monotonic clock.
    """

    pid: int
    num_restarts: int
    at: float
    reason: str


class Heartbeat(Message, frozen=True):
    """A sign of life, at 2 Hz, from a parent at 4 Hz. `stage` is the sender's work, `step` its last completed step.

    A core's stage to its clients is a `CoreStage`, and `reason` says why it is not "ready". A parent's `reason` says
    why a process that its child needs will not come back, and is empty until then. With `blamed_on_request`, an end of
    the child is the fault of one request. `progress` is the share of the model that is loaded.

    A parent's `log_level` is the one that was set while it ran, empty if none was. `restarts` lists those of all
    processes, for API processes, and `news` has keys and a certificate that were read again, sent once.
    """

    stage: str = ""
    step: int = -1
    reason: str = ""
    blamed_on_request: bool = False
    progress: float = 0.0
    log_level: str = ""
    restarts: tuple[Restarts, ...] = ()
    news: bytes = b""


# "recovering": the core has lost its workers and starts others; "stalled": requests wait, and no step has completed for
# longer than any should take. "paused": requests wait until a client resumes the core.
CoreStage = Literal["ready", "recovering", "stalled", "draining", "paused"]

# Between a core and the fork server that its workers are forked from.
MAX_FORK_SERVER_MESSAGE = 4096  # bytes


class Fork(Message, frozen=True):
    """Request a worker. Comes with two descriptors: the worker's end of its connection, and its stderr.

    A third one may come, for memory that outlives the worker. `core_index` is the same for a core and its successors.
    """

    core_index: int = 0


class Signal(Message, frozen=True):
    """Send a signal to a worker of the requesting core, or to all of the worker's process group."""

    pid: int
    number: int
    to_group: bool = False


class Forked(Message, frozen=True):
    """The requested worker, the leader of its own process group.

    Comes with its pidfd; in a sandbox without pidfds, with the end of a pipe that closes once the worker is reaped.
    """

    pid: int
    has_pidfd: bool = True


class NotForked(Message, frozen=True):
    """The reason why there is no worker."""

    reason: str


class Ended(Message, frozen=True):
    """The end of a worker, with its exit code, negative for a signal."""

    pid: int
    code: int


ClientMessage = Hello | Submit | Abort | Call | Heartbeat | Reserve
CoreMessage = Ready | Deltas | Reply | Rejected | Heartbeat | Isolated | LoadReport | AdapterList | WeightsChanged
WorkerInput = Step | Control
WorkerOutput = Sampled | Reply
ForkServerRequest = Fork | Signal
ForkServerMessage = Forked | NotForked | Ended
