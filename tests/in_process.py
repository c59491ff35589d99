"""Requests to an `LLMEngine`, whose whole engine is in the test's own process: no other process has to start."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyllm import LLMEngine, RequestOutput, SamplingParams, SchedulingParams
from pyllm.engine.prompts import Prompt
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING

# Enough for a sequence of the embedded model's context. In a larger cache, blocks that are used for the first time lie
# so far from one another that each costs milliseconds.
KV_CACHE = "256MiB"


@contextmanager
def engine(model: str = "", **options: Any) -> Iterator[LLMEngine]:
    """An engine until the block ends."""
    made = LLMEngine(model, **{"kv_cache_memory_bytes": KV_CACHE, **options})
    try:
        yield made
    finally:
        made.close()


def generate(
    engine: LLMEngine,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
    scheduling: Sequence[SchedulingParams] = (),
) -> list[RequestOutput]:
    """Run the prompts together; return their finished outputs, in order. `params` are one for all, or one for each."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    places = scheduling or [DEFAULT_SCHEDULING] * len(prompts)
    for number, (prompt, own, place) in enumerate(zip(prompts, each, places, strict=True)):
        engine.add_request(str(number), prompt, own, scheduling=place)
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    return [finished[str(number)] for number in range(len(prompts))]


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The tokens of each output's first sample."""
    return [list(output.outputs[0].token_ids) for output in outputs]
