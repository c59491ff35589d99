"""Answers of an engine in this process alone, for sandboxes that do not allow supervised processes.

Needs pyllm itself.
"""

import gc
from collections.abc import Sequence
from typing import Any

import torch

from pyllm import LLMEngine, SamplingParams

Tokens = list[int]


def answers_in_process(
    model: str, prompts: Sequence[Tokens], params: Sequence[SamplingParams], **options: Any
) -> list[Tokens]:
    """The tokens of each prompt's answer; frees the device's memory afterwards."""
    engine = LLMEngine(model, **options)
    answers: dict[str, Tokens] = {}
    try:
        for number, (prompt, its_params) in enumerate(zip(prompts, params, strict=True)):
            engine.add_request(str(number), prompt, its_params)
        while engine.has_unfinished_requests():
            answers |= {output.request_id: list(output.outputs[0].token_ids) for output in engine.step()}
    finally:
        engine.close()
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return [answers[str(number)] for number in range(len(prompts))]
