"""dots.llm1 (arXiv 2506.05767): the attention of Qwen 3, and experts as in DeepSeek V3 after some dense layers."""

from pyllm.families.config import Config
from pyllm.families.family import GGUF_DEEPSEEK_EXPERTS, Family, GgufNames, with_deepseek_experts
from pyllm.families.qwen import read_qwen3
from pyllm.families.spec import ModelSpec


def read(config: Config) -> ModelSpec:
    """The model that a config.json of dots.llm1 describes."""
    config = config.with_defaults(
        head_dim=config.integer("hidden_size") // config.integer("num_attention_heads"),
        sliding_window=4096,
        max_window_layers=62,
        norm_topk_prob=False,
    )
    return with_deepseek_experts(config, read_qwen3(config.replaced(use_sliding_window=True)))


FAMILY = Family(
    architectures=("Dots1ForCausalLM",),
    read=read,
    gguf=GgufNames(architectures=("dots1",), fields=GGUF_DEEPSEEK_EXPERTS),
)
