"""Tries every causal language model of transformers, small and with random weights, and prints the table of what runs.

`make oracle FAMILIES=transformers` writes `docs/transformers.md` with it. A model is equal if greedy tokens of ours, of
sequences in one batch and with prompts in chunks, are those of transformers with its own attention and without a cache.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
import transformers
from transformers import PreTrainedModel

from pyllm.checkpoint.huggingface import read_huggingface
from pyllm.config.process_config import WorkerConfig
from pyllm.errors import ConfigError
from pyllm.families.kv_layout import kv_groups
from pyllm.families.registry import FAMILIES
from pyllm.families.rope import at_context
from pyllm.families.spec import ModelImpl
from pyllm.workers.layers.rank_group import RankGroup
from pyllm.workers.model_limits import check_supported
from pyllm.workers.model_runner import ModelRunner
from pyllm.workers.transformers_backend.probe import probe
from tests.plans import Planner, Row
from tests.tiny_model import write_tokenizer
from tests.workers.engine import resolved, run
from tests.workers.transformers_backend.tiny_configs import causal_models, tiny_model

NEW_TOKENS = 12
LONGEST_REASON = 160

Tokens = list[int]


class Outcome(NamedTuple):
    """What became of a class; a reason where it is refused or cannot be tried, tokens where it is wrong."""

    result: Literal["equal", "refused", "wrong", "untried"]
    reason: str = ""


def prompts() -> list[Tokens]:
    """Longer than a window of the small models, and shorter."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 250, (length,), generator=generator).tolist() for length in (40, 9)]


def try_model(kind: type[PreTrainedModel]) -> Outcome:
    """Save a small model, read it as a user's would be, and compare."""
    try:
        model = tiny_model(kind)
    except Exception as error:  # noqa: BLE001 - whatever a configuration or a missing package raises
        return Outcome("untried", f"it cannot be made small: {type(error).__name__}: {error}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        try:
            found = answers(folder)
        except ConfigError as error:
            return Outcome("refused", str(error))
    expected = [reference(model, prompt) for prompt in prompts()]
    return Outcome("equal") if found == expected else Outcome("wrong", f"{found}, and not {expected}")


@torch.inference_mode()
def reference(model: PreTrainedModel, prompt: Tokens) -> Tokens:
    """The greedy tokens of transformers, the whole sequence computed anew for each."""
    ids = torch.tensor([prompt])
    for _ in range(NEW_TOKENS):
        best = model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, best], 1)
    return ids[0, len(prompt) :].tolist()


def answers(folder: Path, implementation: ModelImpl = "transformers", **options: object) -> list[Tokens]:
    """Our greedy tokens: the long prompt in two chunks, the short one beside the second, then both together."""
    checkpoint = read_huggingface(folder, implementation=implementation, probe=probe)
    chosen = {"max_model_len": 128, "quantization": checkpoint.quantization or "none"} | options
    engine = resolved(str(folder), **chosen)
    context = engine.model.max_model_len or 0
    checkpoint = msgspec.structs.replace(checkpoint, spec=at_context(checkpoint.spec, context))
    check_supported(checkpoint.spec)
    config = WorkerConfig(engine=engine, checkpoint=checkpoint, rank=0, address="", rendezvous="")
    runner = ModelRunner(config, RankGroup())
    runner.load()
    runner.call("allocate", (64, 0))
    groups = kv_groups(checkpoint.spec, context, hybrid=True)
    planner = Planner(num_groups=len(groups), max_num_seqs=engine.scheduler.max_num_seqs)
    long, short = prompts()
    for slot in (0, 1):
        planner.start(slot)
    run(runner, planner.step(Row(0, long[:17], uniforms=())))
    tokens = [run(runner, planner.step(Row(0, long[17:]), Row(1, short)))]
    while len(tokens) < NEW_TOKENS:
        tokens.append(run(runner, planner.step(Row(0, [-1]), Row(1, [-1]))))
    return [list(sequence) for sequence in zip(*tokens, strict=True)]


def page(outcomes: dict[str, Outcome]) -> str:
    """The page of the documents, as Markdown."""
    counts = Counter(outcome.result for outcome in outcomes.values())
    native = {architecture for family in FAMILIES for architecture in family.architectures} & outcomes.keys()
    running = native | {name for name, outcome in outcomes.items() if outcome.result == "equal"}
    lines = [
        HEAD.format(
            version=transformers.__version__,
            equal=counts["equal"],
            total=len(outcomes),
            running=len(running),
            share=100 * len(running) / len(outcomes),
            native=len(native),
            untried=counts["untried"],
        ),
        "| Class | Native | By `transformers` | Reason |",
        "|---|---|---|---|",
    ]
    for name, outcome in sorted(outcomes.items()):
        reason = " ".join(outcome.reason.split()).replace("|", "/")[:LONGEST_REASON]
        lines.append(f"| {name} | {'yes' if name in native else ''} | {outcome.result} | {reason} |")
    return "\n".join(lines) + "\n"


HEAD = """# Models of transformers

A model that no [family of pyllm](models.md) computes is computed by `transformers` itself, over pyllm's scheduler and
paged KV cache:

```
pyllm serve owner/model                                # a family where there is one, else transformers
pyllm serve owner/model --model-impl transformers      # transformers even where there is a family
pyllm serve owner/model --model-impl native            # refuse what no family computes
```

## What is different

- Its linear layers, embedding and head are pyllm's, in each weight format that [a folder may have](models.md). So are
  RMS norms and gated feed-forward layers where they are seen to give the same. The rest is that of `transformers`:
  other norms and activations, experts, rotations. GGUF files need a family.
- Steps run eagerly and without drafts, so it is slower than a family, and
  [2 to 3 times as fast](performance.md#models-of-transformers) as `transformers` alone.
- A token's numbers may depend in their last bits on what else is in the batch. A stream that survives a crash goes on,
  and may have other tokens than it would have had. `GET /v1/models` says so: `model_impl` is `transformers`, and
  `batch_invariant` is false. `--batch-invariant`, `--num-speculative-tokens` and `--enable-expert-parallel` are
  refused.
- `--tensor-parallel-size` follows the model's own tensor-parallel plan. A style that pyllm does not know is refused.
- Code that comes with a model (`auto_map`) is not run.
- It has not run on a GPU yet.

## What is checked

A process of its own builds the model once on the meta device and learns what its attention asks for: heads, scale,
window, soft cap, sinks. The answer is kept in the cache folder. After the weights are loaded, the worker computes a
sequence in several ways: with the attention of `transformers`, beside other sequences, and in two steps. A model whose
results differ is refused, as one with a convolution or a recurrent state along the sequence would be. So is one with a
layer that has no attention. A layer that attends twice has two layers of KV cache.

`dynamic` and `longrope` rotations are chosen once, by `--max-model-len`, [as for families](models.md#long-contexts).
Tensors that the model has no parameter for are skipped, as `transformers` does, and the log names them.

## Which models run

Every class for causal language models in `transformers` {version}, small and with random weights: **{running} of
{total} ({share:.0f} %) run, {native} of them natively**, by a family of pyllm, whose tests compare it with the class.
Computed by `transformers` itself, {equal} give the tokens that it gives alone, in float32; {untried} cannot be made
small here; the others are refused with the reason, and none is wrong. `make oracle FAMILIES=transformers` tries
them all and writes this page.
"""


def main(path: Path) -> None:
    """Try every class, and write the page."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    outcomes = {}
    for name, kind in causal_models().items():
        outcomes[name] = try_model(kind)
        print(name, *outcomes[name], flush=True)
    path.write_text(page(outcomes))
    print(Counter(outcome.result for outcome in outcomes.values()))
    if wrong := [name for name, outcome in outcomes.items() if outcome.result == "wrong"]:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
