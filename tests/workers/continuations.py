"""What transformers computes of a tiny model on the same weights."""

import torch
from transformers import LlamaForCausalLM

PROMPTS = [
    [5, 17, 200, 31, 8, 8, 250, 100, 3, 77, 41, 9, 160, 22, 61, 12, 33, 2, 90, 140],
    [9, 9, 3],
    [(7 * position * position + 3) % 256 for position in range(45)],
]
NUM_TOKENS = 12


def continuations(model: str) -> list[list[int]]:
    """Greedy continuations by transformers; two best logits that lie closer than the margin would be a coin toss."""
    oracle = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    continuations = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                best = oracle(torch.tensor([tokens])).logits[0, -1].topk(2)
                assert best.values[0] - best.values[1] > 1e-3, "choose another prompt"
                tokens.append(int(best.indices[0]))
        continuations.append(tokens[len(prompt) :])
    return continuations
