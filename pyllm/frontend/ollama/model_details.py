"""A checkpoint as Ollama describes models: kind, sizes, quantization, shape, abilities. Opens no file."""

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.hub_files import quantization_of
from pyllm.checkpoint.types import Checkpoint
from pyllm.errors import ConfigError
from pyllm.families.parameter_shapes import num_parameters
from pyllm.frontend.ollama.answer_format import timestamp
from pyllm.frontend.ollama.protocol import ModelDetails, Shown

# Ollama's names of the parameters whose defaults a model may have.
_PARAMETERS = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
# Programs look for this word in a template, to know whether the model fills in the middle.
_SUFFIX_NOTE = "\n{#- /api/generate takes the .Suffix of a gap -#}"
# Of a model that is not loaded, and whose files nobody has read.
NO_DETAILS = ModelDetails("", "", "", [], "", "")
_SIZES = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


class Abilities(Struct, kw_only=True):
    """The abilities of a model, by Ollama's names."""

    completion: bool
    tools: bool
    thinking: bool
    insert: bool
    embedding: bool = True


def shown_model(
    checkpoint: Checkpoint, context_length: int, sampling: SamplingDefaults, template: str, abilities: Abilities
) -> Shown:
    """All of `/api/show`. `sampling` has the defaults of requests."""
    given = {_PARAMETERS.get(name, name): value for name, value in sampling.given().items()}
    lines = {**given, "num_ctx": context_length}
    return Shown(
        modelfile=f"FROM {checkpoint.name}\n",
        parameters="\n".join(f"{name:<30} {value}" for name, value in lines.items()),
        template=template + (_SUFFIX_NOTE if abilities.insert else ""),
        details=details_of(checkpoint),
        model_info=model_info(checkpoint, context_length),
        capabilities=[name for name in Abilities.__struct_fields__ if getattr(abilities, name)],
        modified_at=timestamp(modified(checkpoint)),
    )


def details_of(checkpoint: Checkpoint) -> ModelDetails:
    """The kind of a model."""
    family = _family(checkpoint)
    return ModelDetails(
        parent_model="",
        format=checkpoint.format,
        family=family,
        families=[family],
        parameter_size=size_in_words(num_parameters(checkpoint.spec)),
        quantization_level=_quantization(checkpoint),
    )


def model_info(checkpoint: Checkpoint, context_length: int) -> dict[str, Any]:
    """The fields of a GGUF file's header that say what is computed."""
    spec, family = checkpoint.spec, _family(checkpoint)
    attention = spec.attention
    shape = {
        "context_length": context_length,
        "embedding_length": spec.embedding_size,
        "block_count": len(spec.layers),
        "attention.head_count": attention.heads,
        "attention.head_count_kv": attention.kv_heads,
        "vocab_size": spec.vocab_size,
    }
    return {
        "general.architecture": family,
        "general.basename": checkpoint.name,
        "general.parameter_count": num_parameters(spec),
        **{f"{family}.{name}": value for name, value in shape.items()},
    }


def weights_bytes(checkpoint: Checkpoint) -> int:
    """The size of the files that the weights are in."""
    return sum(path.stat().st_size for path in map(Path, checkpoint.files) if path.is_file())


def modified(checkpoint: Checkpoint) -> float:
    """The time of the last change to these files, in seconds since the epoch; 0 without any."""
    return max((path.stat().st_mtime for path in map(Path, checkpoint.files) if path.is_file()), default=0.0)


def size_in_words(number: int) -> str:
    """A number of parameters with three digits at most: `135M`, `7.62B`."""
    for unit, letter in _SIZES:
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return str(number)


def _family(checkpoint: Checkpoint) -> str:
    """The architecture's name in GGUF files, or else the one in config.json, in lower case."""
    from pyllm.families.registry import find_family  # Imported here: it has all families.

    architecture = checkpoint.spec.architecture
    try:
        names = find_family(architecture).gguf
    except ConfigError:  # A model of transformers.
        names = None
    return architecture.removesuffix("ForCausalLM").lower() if names is None else names.architectures[0]


def _quantization(checkpoint: Checkpoint) -> str:
    """The name that the file has for it, or the type of most of its weights."""
    if named := next((quantization_of(Path(file).name) for file in checkpoint.files if file.endswith(".gguf")), ""):
        return named
    if checkpoint.quantization:
        return checkpoint.quantization.upper()
    sizes: Counter[str] = Counter()
    for entry in checkpoint.tensors:
        for tensor in entry.file_tensors:
            sizes[tensor.type] += tensor.num_bytes
    return sizes.most_common(1)[0][0] if sizes else checkpoint.spec.dtype
