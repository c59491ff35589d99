"""A core over the counting model, and one raw client that keeps what it is sent."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyllm._rust import Scheduler
from pyllm.config.option_reading import engine_config
from pyllm.core.adapters import AdapterSource, ReadAdapter
from pyllm.core.calls import live_settings
from pyllm.core.composition import NOTHING_KEPT, CoreSetup, Surroundings, compose
from pyllm.core.policy_plugins import Policy
from pyllm.kv_transfer import SchedulerConnector
from pyllm.wire.messages import (
    PROTOCOL_VERSION,
    Call,
    ClientMessage,
    CoreMessage,
    Deltas,
    FinishCode,
    Hello,
    ModelInfo,
    Ready,
    Reply,
    Sampling,
    Submit,
)
from pyllm.wire.supervision_messages import Kept
from tests.core.counting_executor import CountingExecutor

EPOCH = 7
MODEL = ModelInfo(
    name="counting",
    max_model_len=128,
    vocab_size=1000,
    eos_token_ids=(),
    dtype="float32",
    quantization="none",
    kv_cache_dtype="float32",
    block_size=4,
    num_blocks=64,
    kv_cache_tokens=256,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    tensor_parallel_size=1,
)


# Small enough that blocks run out, and nothing is kept free for later.
OPTIONS = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16, "watermark": 0, "expected_growth": 0}


class Engine:
    """`now` is its clock, `options` those of the command line; `spy` may stand before the scheduler."""

    def __init__(
        self,
        executor: Any = None,
        depth: int = 1,
        policy: Policy | None = None,
        recording: Path | None = None,
        spy: Callable[[Scheduler], Any] = lambda scheduler: scheduler,
        on_crash: Callable[[str, Mapping[str, bytes]], None] = lambda name, parts: None,
        token_seconds: float = 0.0,
        on_alone: Callable[[bool], None] = lambda is_alone: None,
        memory: bytearray | None = None,
        epoch: int = EPOCH,
        earlier: Kept = NOTHING_KEPT,
        keep: Callable[[Kept], object] = lambda kept: None,
        set_log_level: Callable[[str], None] | None = None,
        connector: SchedulerConnector | None = None,
        adapter_source: AdapterSource | None = None,
        adapters: Sequence[ReadAdapter] = (),
        max_saving_blocks: int = 0,
        whole_prompts: bool = False,
        weights_source: Any = None,
        weights: Any = None,
        **options: Any,
    ) -> None:
        if recording is not None:
            options["scheduler_recording"] = str(recording)
        config = engine_config(OPTIONS | options)
        self.epoch = epoch
        self.executor = executor or CountingExecutor()
        self.scheduler = Scheduler(
            block_size=config.cache.block_size,
            num_blocks=self.executor.num_blocks,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=128,
            vocab_size=1000,
            max_pinned_blocks=config.cache.max_pinned_blocks,
            max_saving_blocks=max_saving_blocks,
            enable_kv_cache_events=config.cache.enable_kv_cache_events,
            incarnation=epoch,
            max_loras=config.lora.num_slots,
            whole_prompts=whole_prompts,
            **live_settings(config.scheduler),
        )
        self.now = 0.0
        self.sent: list[tuple[bytes, CoreMessage]] = []
        self.slow = False  # whether the client's queue is full
        setup = CoreSetup(
            scheduler=spy(self.scheduler),
            executor=self.executor,
            ready=Ready(PROTOCOL_VERSION, epoch, MODEL, "fingerprint"),
            config=config,
            depth=depth,
            policy=policy,
            connector=connector,
            token_seconds=token_seconds,
            earlier=earlier,
            adapter_source=adapter_source,
            adapters=adapters,
            weights_source=weights_source,
            weights=weights,
            on_crash=on_crash,
        )
        around = Surroundings(
            on_alone=on_alone,
            keep=keep,
            set_log_level=set_log_level,
            memory=memory,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        self.core = compose(setup, self, around)
        self.receive(Hello(PROTOCOL_VERSION))

    def send(self, message: CoreMessage, *frames: object, identity: bytes = b"") -> bool:
        """Take what the core sends."""
        if not self.slow:
            self.sent.append((identity, message))
        return not self.slow

    def close(self, linger: float = 0.0) -> None:
        """Nothing is open."""

    async def sleep(self, seconds: float) -> None:
        """Take no time but the clock's."""
        self.now += seconds

    def receive(self, message: ClientMessage, identity: bytes = b"client") -> None:
        self.core.receive(identity, message)

    def submit(self, request: int, prompt: list[int], max_tokens: int = 4, **fields: Any) -> None:
        packed = array("i", prompt).tobytes()
        epoch, sampling = fields.pop("epoch", EPOCH), fields.pop("sampling", Sampling())
        self.receive(Submit(epoch, request, packed, fields.pop("seed", 0), max_tokens, sampling, **fields))

    def outputs(self, identity: bytes = b"client") -> dict[int, tuple[list[int], FinishCode]]:
        """Tokens and finish of each request's first sample."""
        outputs = self.outputs_by_sample(identity).items()
        return {request: output for (request, sample), output in outputs if sample == 0}

    def outputs_by_sample(self, identity: bytes = b"client") -> dict[tuple[int, int], tuple[list[int], FinishCode]]:
        """Tokens and finish by request and sample, put together from the deltas sent so far."""
        result: dict[tuple[int, int], tuple[list[int], FinishCode]] = {}
        for receiver, message in self.sent:
            if receiver != identity or not isinstance(message, Deltas):
                continue
            starts, tokens = array("i", message.token_starts), array("i", message.tokens)
            names = zip(array("Q", message.requests), array("i", message.samples), strict=True)
            for row, name in enumerate(names):
                before, _ = result.get(name, ([], FinishCode.NONE))
                assert array("i", message.offsets)[row] == len(before)
                new = list(tokens[starts[row] : starts[row + 1]])
                result[name] = (before + new, FinishCode(message.finishes[row]))
        return result

    def messages(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def call(self, method: str, *args: Any, identity: bytes = b"client") -> Reply:
        """Ask as a client does, the arguments and the answer as the wire makes them."""
        wired = msgspec.msgpack.decode(msgspec.msgpack.encode(args))
        self.receive(Call(EPOCH, 1, method, tuple(wired)), identity)
        reply = self.messages(Reply)[-1]
        return msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply)

    async def run_dry(self) -> None:
        while await self.core.step():
            pass
