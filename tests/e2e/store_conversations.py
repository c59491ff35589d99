"""Conversations that come back, for servers with a KV store: known prompts in turns, each with its answer without one.

Several share a system prompt. Knows HTTP requests; knows no process and no store.
"""

import random
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.chaos_clients import Known
from tests.e2e.server import Server
from tests.e2e.survival_streams import STREAMED, Request, Streams
from tests.tiny_model import write_tiny_model

BLOCK_SIZE = 16
NUM_SYSTEM_PROMPTS, SYSTEM_TOKENS = 4, 160
TURNS, USER_TOKENS, ANSWER_TOKENS = 3, 48, 24
LAYERS, KV_HEADS, HEAD_DIM = 4, 4, 32
BLOCK_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * BLOCK_SIZE * 4  # keys and values in float32


class Conversations(NamedTuple):
    """All turns of all conversations, and the blocks that they have together."""

    turns: list[Known]
    num_blocks: int


def write_model(folder: Path) -> str:
    """A small model whose prompts take longer to compute than to load, as those of large ones do; gives its folder."""
    return write_tiny_model(
        folder,
        heads=8,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        layers=LAYERS,
        hidden_size=256,
        intermediate_size=1536,
        max_position_embeddings=1024,
    )


def converse(server: Server, number: int, seed: int) -> Conversations:
    """Have so many conversations with a server that has no store; every second one is greedy, the others are seeded.

    A turn is asked with all turns before it, and the answer that came to each.
    """
    choose = random.Random(seed)
    systems = [_tokens(choose, SYSTEM_TOKENS) for _ in range(NUM_SYSTEM_PROMPTS)]
    prompts = [list(systems[index % NUM_SYSTEM_PROMPTS]) for index in range(number)]
    samplings: list[dict[str, Any]] = [
        {"temperature": 1, "top_p": 0.95, "seed": index} if index % 2 else {"temperature": 0} for index in range(number)
    ]
    turns = []
    for turn in range(TURNS):
        requests = []
        for index, prompt in enumerate(prompts):
            prompt.extend(_tokens(choose, USER_TOKENS))
            body = {**STREAMED, **samplings[index], "prompt": list(prompt), "max_tokens": ANSWER_TOKENS}
            name = f"conversation {index}, turn {turn}"
            requests.append(Request(name, "/v1/completions", {**body, "ignore_eos": True}))
        twins = Streams(server.address, requests).join()
        assert [twin.error for twin in twins] == [""] * number
        turns += map(Known, requests, twins)
        for prompt, twin in zip(prompts, twins, strict=True):
            prompt.extend(twin.choices[0].tokens)
    num_shared = SYSTEM_TOKENS // BLOCK_SIZE
    own = sum(len(prompt) // BLOCK_SIZE - num_shared for prompt in prompts)
    return Conversations(turns, own + NUM_SYSTEM_PROMPTS * num_shared)


def _tokens(choose: random.Random, number: int) -> list[int]:
    return [choose.randrange(256) for _ in range(number)]
