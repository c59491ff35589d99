from .pooling import Pooler
from .prompt_logprobs import score_prompts
from .sampler import SamplingRows, sample, sample_on_device
from .sampling_slots import SamplingSlots
from .token_sampler import Draw, TokenSampler

__all__ = [
    "Draw",
    "Pooler",
    "SamplingRows",
    "SamplingSlots",
    "TokenSampler",
    "sample",
    "sample_on_device",
    "score_prompts",
]
