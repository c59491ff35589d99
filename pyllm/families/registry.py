"""The table of families, and lookup of families that other packages add by the entry-point group `pyllm.families`.

A new family is a file beside this one, its import and its line in the table here, and its test.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from itertools import chain

from pyllm.errors import ConfigError
from pyllm.families import (
    afmoe,
    apertus,
    bamba,
    bert,
    bitnet,
    bloom,
    cohere,
    dbrx,
    deci,
    deepseek,
    deepseek_v32,
    dots1,
    ernie,
    exaone4,
    falcon,
    falcon_h1,
    flint,
    gemma,
    gemma3n,
    gemma4,
    glm4,
    glm4_moe,
    gpt2,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    gte,
    hunyuan,
    jamba,
    jina_bert,
    kimi_linear,
    laguna,
    lfm2,
    ling,
    ling_3,
    llama,
    llama4,
    mamba,
    mimo,
    minicpm3,
    minimax_01,
    minimax_m2,
    mistral,
    modernbert,
    mpnet,
    mpt,
    nanochat,
    nemotron,
    nemotron_h,
    nomic_bert,
    olmo,
    olmo_hybrid,
    opt,
    phi,
    phi3,
    phimoe,
    qwen,
    qwen3_next,
    smollm3,
    stablelm,
    starcoder2,
    step,
)
from pyllm.families.family import Family

GROUP = "pyllm.families"
FAMILIES = (
    llama.FAMILY,
    llama.SEED_OSS,
    llama.ARCEE,
    llama.HELIUM,
    llama.CWM,
    llama.EXAONE,
    llama.INTERNLM2,
    llama.EUROBERT,
    llama.LLAMA_EMBED,
    mistral.FAMILY,
    mistral.MIXTRAL,
    qwen.QWEN2,
    qwen.QWEN2_MOE,
    qwen.QWEN3,
    qwen.QWEN3_MOE,
    qwen.QWEN3_VL_MOE,
    qwen.MELLUM,
    qwen3_next.QWEN3_NEXT,
    qwen3_next.QWEN3_5,
    qwen3_next.QWEN3_5_MOE,
    gemma.GEMMA,
    gemma.VAULT_GEMMA,
    gemma.GEMMA2,
    gemma.GEMMA3,
    gemma.EMBEDDING_GEMMA,
    gemma3n.FAMILY,
    gemma4.GEMMA4,
    gemma4.GEMMA4_UNIFIED,
    phi.FAMILY,
    phi3.FAMILY,
    smollm3.FAMILY,
    olmo.OLMO,
    olmo.OLMO2,
    olmo.OLMO3,
    olmo.OLMOE,
    olmo.FLEX_OLMO,
    olmo_hybrid.FAMILY,
    granite.GRANITE,
    granite.GRANITE_SWA,
    granite.MINICPM,
    granite.HYPERCLOVA,
    granite.GRANITE_MOE,
    granite.GRANITE4,
    glm4.GLM,
    glm4.CHATGLM,
    glm4.GLM4,
    glm4_moe.GLM4_MOE,
    glm4_moe.FLASH,
    glm4_moe.SOLAR_OPEN,
    cohere.COHERE,
    cohere.COHERE2,
    cohere.COHERE2_MOE,
    gpt_oss.FAMILY,
    flint.FAMILY,
    laguna.FAMILY,
    kimi_linear.FAMILY,
    lfm2.LFM2,
    lfm2.LFM2_MOE,
    lfm2.LFM3,
    ling.LING,
    ling.LING_2,
    ling.RING_LINEAR,
    ling.LING_2_5,
    ling_3.FAMILY,
    exaone4.EXAONE4,
    exaone4.EXAONE_MOE,
    apertus.FAMILY,
    afmoe.FAMILY,
    nemotron.NEMOTRON,
    nemotron.JAIS2,
    nemotron_h.FAMILY,
    bamba.FAMILY,
    jamba.FAMILY,
    mamba.MAMBA,
    mamba.FALCON_MAMBA,
    mamba.MAMBA2,
    starcoder2.FAMILY,
    step.FAMILY,
    stablelm.FAMILY,
    falcon.FAMILY,
    falcon_h1.FAMILY,
    gpt_neox.GPT_NEOX,
    gpt_neox.JAPANESE,
    gpt2.GPT2,
    gpt2.GPT_BIGCODE,
    gpt2.GPT_NEO,
    opt.OPT,
    opt.BIOGPT,
    opt.XGLM,
    bloom.FAMILY,
    mpt.FAMILY,
    nanochat.FAMILY,
    gptj.GPTJ,
    gptj.CODEGEN,
    deepseek.FAMILY,
    deepseek.MOE,
    deepseek.MISTRAL4,
    deepseek_v32.DEEPSEEK_V32,
    deepseek_v32.GLM5,
    deci.FAMILY,
    dots1.FAMILY,
    dbrx.FAMILY,
    ernie.ERNIE,
    ernie.ERNIE_MOE,
    minicpm3.FAMILY,
    mimo.FAMILY,
    minimax_m2.FAMILY,
    minimax_01.FAMILY,
    hunyuan.HUNYUAN,
    hunyuan.HUNYUAN_MOE,
    hunyuan.HY_V3,
    llama4.FAMILY,
    phimoe.FAMILY,
    bitnet.FAMILY,
    bert.BERT,
    bert.ROBERTA,
    bert.ELECTRA,
    bert.DISTILBERT,
    gte.FAMILY,
    jina_bert.FAMILY,
    mpnet.FAMILY,
    nomic_bert.FAMILY,
    modernbert.FAMILY,
)


class UnknownArchitectureError(ConfigError):
    """An architecture that belongs to no family."""


def find_family(architecture: str, offered: Iterable[EntryPoint] | None = None) -> Family:
    """The family of an architecture of config.json. Families of other packages cannot replace a built-in architecture.

    Raises:
        UnknownArchitectureError: no family has it; the message lists the known architectures.
        ConfigError: an entry point is no family.
    """
    families = {name: family for family in FAMILIES for name in family.architectures}
    if architecture not in families:
        families |= {name: family for family in _offered(offered) for name in family.architectures}
    if architecture not in families:
        known = ", ".join(sorted(families))
        raise UnknownArchitectureError(f"architecture {architecture!r} is not supported; supported: {known}")
    return families[architecture]


def spelled_architecture(name: str) -> str:
    """The architecture for another name: a model_type, a class without a head, another spelling; empty if unknown.

    `llama`, `LlamaModel`, `LLaMAForCausalLM` and `FSDPLlamaForCausalLM`, which a trainer may save, give
    `LlamaForCausalLM`; `Gemma3nTextModel` gives `Gemma3nForCausalLM`, `BertForSequenceClassification` `BertModel`.
    """
    names = [known for family in FAMILIES for known in family.architectures]
    if name in names or not (stem := _stem(name)):
        return name if name in names else ""
    is_text_model = name.endswith("ForCausalLM")  # RobertaForCausalLM, which is no encoder
    return next(
        (known for known in names if _stem(known) == stem and not (is_text_model and known.endswith("Model"))), ""
    )


def _stem(name: str) -> str:
    stem = name.removeprefix("FSDP").lower().replace("_", "")
    for ending in (
        "forcausallm",
        "forsequenceclassification",
        "forconditionalgeneration",
        "lmheadmodel",
        "model",
        "text",
    ):
        stem = stem.removesuffix(ending)
    return stem


def find_gguf_family(architecture: str, offered: Iterable[EntryPoint] | None = None) -> Family:
    """The family of a GGUF file's `general.architecture`.

    Raises:
        ConfigError: as `find_family`.
    """
    known: set[str] = set()
    for family in chain(FAMILIES, _offered(offered)):
        if family.gguf is not None:
            if architecture in family.gguf.architectures:
                return family
            known.update(family.gguf.architectures)
    raise ConfigError(f"GGUF architecture {architecture!r} is not supported; supported: {', '.join(sorted(known))}")


def _offered(offered: Iterable[EntryPoint] | None) -> list[Family]:
    families = []
    for entry in entry_points(group=GROUP) if offered is None else offered:
        try:
            family = entry.load()
        except Exception as error:
            raise ConfigError(f"model family {entry.name!r} ({entry.value}) cannot be imported: {error}") from error
        if not isinstance(family, Family):
            raise ConfigError(f"model family {entry.name!r} ({entry.value}) is {family!r:.80}, not a Family")
        families.append(family)
    return families
