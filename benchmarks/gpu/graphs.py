"""A check that CUDA graphs do not change the tokens of a small model. Needs pyllm itself."""

import torch

from benchmarks.gpu.checks import Pairs, Setting
from benchmarks.gpu.in_process import answers_in_process
from pyllm import SamplingParams

PROMPTS = [[token % 250 + 3 for token in range(first, last)] for first, last in ((5, 6), (40, 59), (100, 400))]
# They end one after the other, so that there are batches of every captured size, and one that must be padded.
LENGTHS = (24, 16, 8)


def same_tokens(setting: Setting, model: str = "") -> Pairs:
    """Greedy tokens in float32 with graphs and without; padded batches must not change them."""
    served = []
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in LENGTHS]
    for enforce_eager in (False, True):
        answers = answers_in_process(
            model,
            PROMPTS,
            params,
            device=setting.device.type,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=4,
            kv_cache_memory_bytes=256 << 20,
            enforce_eager=enforce_eager,
        )
        served.append(torch.tensor([token for answer in answers for token in answer]))
    return [(served[0], served[1])]
