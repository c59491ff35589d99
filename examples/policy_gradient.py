"""A policy gradient (REINFORCE) on the embedded model, with numpy alone: it learns to begin answers with a word.

The engine samples, and gets the new weights through shared memory after each step. Trained is the scale of the last
norm, one number for each hidden feature: its gradient needs no backward pass through the layers.
"""

import numpy as np

from pyllm import LLM, SamplingParams
from pyllm.checkpoint.reader import read_checkpoint
from pyllm.checkpoint.types import read_tensor

PROMPTS = ["The weather today is", "My favourite food is", "She opened the door and", "The best way to learn is"]
REWARDED = " a"  # an answer that begins with this token has the reward 1
SAMPLES, STEPS, RATE = 64, 6, 8.0

model = read_checkpoint()
tensors = {entry.name: entry.source for entry in model.tensors}


def floats(name: str) -> np.ndarray:
    """A tensor of the file as float32: of floats, or of blocks with a scale and 32 int8 each (Q8_0)."""
    tensor = tensors[name]
    content = read_tensor(tensor, model.files)
    if tensor.type == "F32":
        return np.frombuffer(content, np.float32).reshape(tensor.shape)
    blocks = np.frombuffer(content, [("scale", np.float16), ("numbers", np.int8, 32)])
    return (blocks["scale"][:, None].astype(np.float32) * blocks["numbers"]).reshape(tensor.shape)


head, scale = floats("embedding.weight"), floats("norm.weight").copy()
first_token = SamplingParams(temperature=1.0, max_tokens=1, n=SAMPLES)

with LLM(kv_cache_memory_bytes="256MiB") as llm:
    (wanted,) = llm.tokenizer.encode(REWARDED, add_special_tokens=False)
    # An embedding is the last hidden state after the norm, of length 1. Without the scale its mean square is 1.
    hidden = np.array([output.outputs.embedding for output in llm.embed(PROMPTS, use_tqdm=False)]) / scale
    hidden /= np.sqrt((hidden**2).mean(axis=1, keepdims=True))
    for step in range(STEPS + 1):
        outputs = llm.generate(PROMPTS, first_token, use_tqdm=False)
        tokens = np.array([[sample.token_ids[0] for sample in output.outputs] for output in outputs])
        rewards = (tokens == wanted).astype(np.float32)
        print(f"step {step}: {rewards.mean():.0%} of {rewards.size} answers begin with {REWARDED!r}")
        if step == STEPS:
            break
        advantages = rewards - rewards.mean(axis=1, keepdims=True)
        gradient = np.zeros_like(scale)
        for state, chosen, advantage in zip(hidden, tokens, advantages, strict=True):
            logits = head @ (state * scale)
            likely = np.exp(logits - logits.max())
            likely /= likely.sum()
            # The gradient of a token's log-probability: its row of the head minus the mean row, times the state.
            gradient += state * (advantage @ head[chosen] - advantage.sum() * (likely @ head)) / advantage.size
        scale += RATE * gradient / len(PROMPTS)
        llm.update_weights({tensors["norm.weight"].name: scale}, mode="finish")
