"""A core without a model: it records what a client sends and says what a test wants said."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from pyllm.client.client import EngineClient
from pyllm.client.columns import StartTimes
from pyllm.wire.ipc import MalformedHandler, MessageHandler, PeerGoneError
from pyllm.wire.messages import (
    PROTOCOL_VERSION,
    RESERVATION,
    Abort,
    Call,
    ClientMessage,
    CoreMessage,
    Deltas,
    FinishCode,
    Hello,
    LoadReport,
    ModelInfo,
    Output,
    Ready,
    Rejected,
    Reply,
    Reserve,
    Submit,
)

MODEL = ModelInfo(
    name="tiny",
    max_model_len=256,
    vocab_size=600,
    eos_token_ids=(0,),
    dtype="float32",
    quantization="none",
    kv_cache_dtype="float32",
    block_size=16,
    num_blocks=32,
    kv_cache_tokens=512,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    tensor_parallel_size=1,
    hidden_size=4,
)
EPOCH = 7
# The scheduler's figures, and the core's.
STATS = (
    *("num_requests", "num_running", "num_waiting", "num_swapped_out", "num_held", "num_loading"),
    "num_uncomputed_tokens",
    *("num_blocks", "num_free_blocks", "num_used_blocks", "num_cached_blocks", "num_pinned_blocks"),
    *("num_host_blocks", "num_free_host_blocks", "num_cached_host_blocks"),
    *("num_empty_slots", "num_free_runs", "longest_free_run"),
    *("num_empty_host_slots", "num_free_host_runs", "longest_free_host_run"),
    *("num_preemptions", "num_swapped", "num_expired", "prefix_queries", "prefix_hits", "host_prefix_hits"),
    "loaded_prefix_hits",
    *("num_computed_tokens", "num_steps", "num_drafts", "num_accepted_drafts", "num_failed_loads"),
    *(f"iteration_tokens_le_{bound}" for bound in (1, *(2**power for power in range(3, 15)), "inf")),
    *(f"accepted_drafts_le_{bound}" for bound in (*range(16), "inf")),
    *(f"request_preemptions_le_{bound}" for bound in (1, 2, 3, 4, 5, 10, 20, "inf")),
    *("num_ended_preemptions", "num_uncached_tokens", "num_speculative_tokens"),
    *("num_sleeping", "num_without_weights"),
    *("num_recoveries", "num_suspects", "num_quarantine_failures", "num_degradations"),
)


Entries = list[tuple[int, float, int]]


class Row(NamedTuple):
    """One row of a `Deltas`; `logprobs` has id, log-probability and rank of each token's entries."""

    request: int
    tokens: list[int]
    offset: int = 0
    sample: int = 0
    finish: FinishCode = FinishCode.NONE
    cached_tokens: int = 0
    logprobs: list[Entries] | None = None
    embedding: tuple[float, ...] = ()
    start: StartTimes | None = None


# When `ScriptedCore` says that a request began.
START = StartTimes(0.5, 0.25)


def told(token: int, count: int, named: Sequence[int] = ()) -> Entries:
    """The log-probabilities that `ScriptedCore` gives: a token is the second likeliest, the others are `<`, `=`, `>`...

    Those that the request names are less likely, the first the most.
    """
    likeliest = [(30 + place, -0.5 - place, 2 * place + 1) for place in range(count)]
    return [(token, -1.0, 2), *likeliest, *((each, -2.0 - place, 3 + place) for place, each in enumerate(named))]


def embedded(prompt: list[int]) -> tuple[float, ...]:
    """What `ScriptedCore` embeds a prompt as."""
    return (float(len(prompt)), float(prompt[0]), float(prompt[-1]), 1 / 3)


def deltas(*rows: Row, epoch: int = EPOCH) -> Deltas:
    """The message that carries these rows."""
    has_logprobs = any(row.logprobs for row in rows)
    has_embeddings = any(row.embedding for row in rows)
    tokens = [each for row in rows for each in row.logprobs or [[]] * len(row.tokens)]
    entries = [entry for each in tokens for entry in each]
    starts = [(index, row.start) for index, row in enumerate(rows) if row.start is not None]
    return Deltas(
        epoch,
        array("Q", [row.request for row in rows]).tobytes(),
        array("i", [row.sample for row in rows]).tobytes(),
        array("i", [row.offset for row in rows]).tobytes(),
        array("i", [0, *accumulate(len(row.tokens) for row in rows)]).tobytes(),
        array("i", [token for row in rows for token in row.tokens]).tobytes(),
        bytes(row.finish for row in rows),
        array("i", [row.cached_tokens for row in rows]).tobytes(),
        array("i", [0, *accumulate(map(len, tokens))]).tobytes() if has_logprobs else b"",
        array("i", [token for token, _, _ in entries]).tobytes(),
        array("f", [value for _, value, _ in entries]).tobytes(),
        array("i", [rank for _, _, rank in entries]).tobytes(),
        array("i", [0, *accumulate(len(row.embedding) for row in rows)]).tobytes() if has_embeddings else b"",
        array("f", [value for row in rows for value in row.embedding]).tobytes(),
        array("i", [index for index, _ in starts]).tobytes(),
        array("f", [start.queue for _, start in starts]).tobytes(),
        array("f", [start.prefill for _, start in starts]).tobytes(),
    )


class FakeCore:
    """The other end of an `EngineClient`: pass `core.connect` to the client's constructor.

    Everything that a client sends is encoded and decoded, as the wire would.
    """

    def __init__(self, model: ModelInfo = MODEL, epoch: int = EPOCH) -> None:
        self.model = model
        self.epoch = epoch
        self.fingerprint = "fingerprint"
        self.received: list[ClientMessage] = []
        self.version = PROTOCOL_VERSION
        self.answers_hello = True
        self.takes_messages = True
        self.closed = False
        self.on_message: MessageHandler[CoreMessage]
        self.on_malformed: MalformedHandler
        self.on_disconnect: Callable[[], None]

    def connect(
        self,
        on_message: MessageHandler[CoreMessage],
        on_malformed: MalformedHandler,
        on_disconnect: Callable[[], None],
    ) -> "FakeCore":
        self.on_message, self.on_malformed, self.on_disconnect = on_message, on_malformed, on_disconnect
        return self

    def send(self, message: ClientMessage, *frames: Any, identity: bytes = b"") -> bool:
        if self.closed:
            raise PeerGoneError(identity.hex())
        if not self.takes_messages:
            return False
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ClientMessage)
        self.received.append(message)
        self.handle(message)
        return True

    def close(self, linger: float = 0.0) -> None:
        self.closed = True

    def handle(self, message: ClientMessage) -> None:
        """Answer a message; what a test needs beyond hello and a reservation is for subclasses."""
        if isinstance(message, Hello) and self.answers_hello:
            self.say(Ready(self.version, self.epoch, self.model, self.fingerprint))
        if isinstance(message, Reserve):
            self.say(LoadReport(self.epoch, 0, 0, b"", b"", 0, RESERVATION))

    def say(self, message: CoreMessage) -> None:
        """Let the client read a message."""
        self.on_message(b"", msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=CoreMessage))

    def end(self, reason: str = "the engine was shut down") -> None:
        """Tell the client that its requests end here, as after a drain's deadline."""
        self.say(Rejected(None, "engine_dead", reason))

    def say_rows(self, *rows: Row) -> None:
        """Let the client read deltas of this epoch."""
        self.say(deltas(*rows, epoch=self.epoch))

    def sent(self, kind: type) -> list[Any]:
        """What the client sent of one type."""
        return [message for message in self.received if isinstance(message, kind)]


class Cores:
    """Cores that follow one another: pass `cores.connect` to the client's constructor.

    Each connection is to the next one; the last one is there for good.
    """

    def __init__(self, *cores: FakeCore) -> None:
        self._cores = list(cores)

    def connect(
        self,
        on_message: MessageHandler[CoreMessage],
        on_malformed: MalformedHandler,
        on_disconnect: Callable[[], None],
    ) -> FakeCore:
        core = self._cores.pop(0) if len(self._cores) > 1 else self._cores[0]
        return core.connect(on_message, on_malformed, on_disconnect)


class ScriptedCore(FakeCore):
    """Answers every prompt with the tokens of `script(prompt, sample)`: one per sample in each turn of the event loop.

    It ends a sample at its stop tokens, its `max_tokens` and its abort, as a scheduler does, or at the script's end.
    Log-probabilities are those of `told`, embeddings those of `embedded`; what is not resumed began as `START` says.
    With `paused` it says nothing until `resume`.
    """

    def __init__(
        self, script: Callable[[list[int], int], list[int]], model: ModelInfo = MODEL, epoch: int = EPOCH
    ) -> None:
        super().__init__(model, epoch)
        self.script = script
        self.paused = False
        self.running: dict[tuple[int, int], tuple[Submit, list[int], int]] = {}
        self.stats = dict.fromkeys(STATS, 0) | {"num_blocks": 32, "num_used_blocks": 8, "num_preemptions": 3}
        self.stats |= {"prefix_queries": 100, "prefix_hits": 40}
        self.replies: dict[str, Any] = {}  # to calls of other names
        self.on_stats: Callable[[], dict[str, int]] = dict  # what is else to be told, when it is asked
        self._scheduled = False

    def handle(self, message: ClientMessage) -> None:
        super().handle(message)
        match message:
            case Submit():
                prompt = array("i", message.prompt).tolist()
                outputs = message.outputs or (Output(b"", False),) * message.n
                for sample, (tokens, finished) in enumerate(map(msgspec.structs.astuple, outputs)):
                    if not finished:
                        script = self.script(prompt, sample)
                        self.running[message.request, sample] = (message, script, len(tokens) // 4)
                self._schedule()
            case Abort(_, request, sample):
                ended = [key for key in self.running if key[0] == request and sample in (-1, key[1])]
                for key in ended:
                    del self.running[key]
                    self._end(key)
            case Call(_, number, "stats"):
                running = {"num_running": len({key[0] for key in self.running})}
                self.say(Reply(number, True, self.stats | running | self.on_stats()))
            case Call(_, number, method) if method in self.replies:
                self.say(Reply(number, True, self.replies[method]))
            case Call(_, number, method):
                self.say(Reply(number, False, f"unknown method {method!r}"))

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self._schedule()

    def _end(self, key: tuple[int, int]) -> None:
        # An abort is answered while the client may still be in the middle of its own call.
        row = Row(key[0], [], 0, key[1], FinishCode.ABORT)
        asyncio.get_running_loop().call_soon(lambda: None if self.closed else self.say_rows(row))

    def _schedule(self) -> None:
        if not self._scheduled and not self.paused and self.running:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self.paused or self.closed:
            return
        rows = []
        for (request, sample), (submit, tokens, offset) in list(self.running.items()):
            if submit.sampling.pooling:
                del self.running[request, sample]
                vector = embedded(array("i", submit.prompt).tolist())
                rows.append(Row(request, [], finish=FinishCode.STOP, cached_tokens=2, embedding=vector, start=START))
                continue
            token = tokens[offset]
            position = offset + 1
            finish = FinishCode.NONE
            if token in array("i", submit.stop_token_ids):
                finish = FinishCode.STOP
            elif position == min(submit.max_tokens, len(tokens)):
                finish = FinishCode.LENGTH
            if finish:
                del self.running[request, sample]
            else:
                self.running[request, sample] = (submit, tokens, position)
            of_prompt = submit.sampling.prompt_logprobs
            if offset == 0 and sample == 0 and of_prompt is not None:
                prompt = array("i", submit.prompt).tolist()[1:]
                entries = [told(each, of_prompt) for each in prompt]
                self.say_rows(Row(request, prompt, -len(prompt), logprobs=entries))
            count = submit.sampling.logprobs
            named = array("i", submit.sampling.logprob_token_ids)
            logprobs = None if count is None else [told(token, count, named)]
            start = START if offset == sample == 0 and not submit.outputs else None
            rows.append(Row(request, [token], offset, sample, finish, 2, logprobs, start=start))
        if rows:
            self.say_rows(*rows)
        self._schedule()


async def connected(core: FakeCore | Cores, **options: Any) -> EngineClient:
    """A client of this core, without heartbeats of its own: tests call `beat`."""
    client = EngineClient(core.connect, heartbeats=False, **options)
    await client.start()
    return client


class ExpiringCore(ScriptedCore):
    """Its requests end by their deadline after one token."""

    def _step(self) -> None:
        super()._step()
        for request, sample in list(self.running):
            _, _, offset = self.running.pop((request, sample))
            self.say_rows(Row(request, [], offset, sample, FinishCode.DEADLINE))
