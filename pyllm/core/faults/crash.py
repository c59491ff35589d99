"""The state of a core when its workers died, and its crash report. Does not judge which request is to blame."""

from array import array
from typing import NamedTuple

import msgspec

from pyllm._rust import Scheduler
from pyllm.config.engine_settings import EngineConfig
from pyllm.errors import WorkerDeadError
from pyllm.supervision.flight_recorder import config_json

NUM_DECISIONS = 64  # in a report


class Crash(NamedTuple):
    """The state of a core when its workers died."""

    death: WorkerDeadError
    epoch: int
    steps: list[int]  # in flight, oldest first
    requests: list[tuple[int, int]]  # with rows in these steps: client and request


def crash_report(crash: Crash, scheduler: Scheduler, stats: dict[str, int], config: EngineConfig) -> dict[str, bytes]:
    """The report as contents by file name; without tokens, unless the configuration asks for them."""
    keys = [{"client": client, "request": request} for client, request in crash.requests]
    samples = [scheduler.explain(client, request) for client, request in crash.requests]
    report = {
        "cause": crash.death.cause,
        "death": str(crash.death),
        "epoch": crash.epoch,
        "steps_in_flight": crash.steps,
        "suspects": [key | {"samples": of} for key, of in zip(keys, samples, strict=True)],
        "decisions": scheduler.decisions(NUM_DECISIONS),
        "stats": stats,
    }
    parts = {
        "report.json": msgspec.json.format(msgspec.json.encode(report)),
        "config.json": config_json(config),
        "worker.log": crash.death.log,
    }
    if config.recovery.flight_recorder_prompts:
        tokens = [key | _tokens(scheduler, *of) for key, of in zip(keys, crash.requests, strict=True)]
        parts["tokens.json"] = msgspec.json.encode(tokens)
    return parts


def _tokens(scheduler: Scheduler, client: int, request: int) -> dict[str, object]:
    prompt, outputs = scheduler.history(client, request)
    return {"prompt": list(array("i", prompt)), "outputs": [list(array("i", output)) for output in outputs]}
