"""The settings of a model: its name, tokenizer, precision and sampling defaults. Reads no model."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.families.spec import ModelImpl

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
Quantization = Literal["auto", "none", "int8", "gguf", "compressed-tensors", "awq", "gptq", "fp8", "mxfp4", "bitnet"]


class ModelConfig(ConfigPart, frozen=True):
    """The model, its tokenizer, precision and sampling defaults."""

    model: Annotated[
        str,
        Meta(
            description="GGUF file, Hugging Face folder, or a model of the hub: owner/repo, owner/repo:Q4_K_M, "
            "owner/repo@revision; empty: the embedded SmolLM2-135M"
        ),
    ] = ""
    served_model_name: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="names of the model in the API; answers carry the first; "
            "default: the model's name on the hub, or its file's"
        ),
        TextForm(num_words="+"),
    ] = ()
    tokenizer: Annotated[
        str,
        Meta(
            description="take the tokenizer and its chat template from here: a folder, a GGUF file or a model of the "
            "hub; default: the model's own"
        ),
    ] = ""
    revision: Annotated[
        str, Meta(description="branch, tag or commit of a model of the hub; default: main, or the one in its name")
    ] = ""
    tokenizer_revision: Annotated[str, Meta(description="the same of the model that --tokenizer names")] = ""
    download_dir: Annotated[
        str,
        Meta(description="folder for models of the hub; default: huggingface_hub's cache"),
        TextForm(metavar="FOLDER"),
    ] = ""
    hf_token: Annotated[
        str,
        Meta(description="token for the hub; HF_TOKEN in the environment keeps it out of the list of processes"),
        TextForm(num_words="?", is_secret=True),
    ] = ""
    hf_overrides: Annotated[
        dict[str, Any],
        Meta(description="entries that replace those of the folder's config.json, as '{\"rope_theta\": 500000}'"),
    ] = msgspec.field(default_factory=dict)
    chat_template: Annotated[
        str, Meta(description="chat template: a Jinja file, or the template itself; default: the tokenizer's")
    ] = ""
    generation_config: Annotated[
        str,
        Meta(
            description="sampling defaults: auto (the model's generation_config.json or GGUF fields), vllm (none), or "
            "the path of a generation_config.json or its folder"
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, int | float],
        Meta(description="sampling defaults that replace those of --generation-config, as '{\"temperature\": 0.5}'"),
    ] = msgspec.field(default_factory=dict)
    load_format: Annotated[
        LoadFormat,
        Meta(description="auto: the files say their format; dummy: weights are made up, to measure speed without them"),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="who computes the model: native (pyllm's families), transformers (other causal language models "
            "of that package, slower and not batch-invariant), or auto (native where there is a family)"
        ),
    ] = "auto"
    dtype: Annotated[
        Dtype,
        Meta(
            description="precision of activations and of unquantised weights; auto: the model's, or bfloat16 beside "
            "quantised weights (float16 on GPUs before 8.0)"
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="how weights are multiplied: none (as floats); gguf (the file's blocks, if there is a kernel); "
            "int8, on a CPU; or the method of a quantised folder; auto: the fastest for the model"
        ),
    ] = "auto"
    packed_cache_size: Annotated[
        int,
        Meta(
            description="limit on packed weights that are kept in the cache folder for the next start, such as 64GiB, "
            "or a number of GiB; 0 keeps none",
            ge=0,
        ),
        TextForm(size_unit=1 << 30),
    ] = 64 << 30
    max_model_len: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="longest prompt plus output, in tokens; default: the model's context"),
        TextForm(has_auto=True),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None,
        Meta(description="draw the seeds of requests that have none from this one; default: at random"),
    ] = None
    max_logprobs: Annotated[
        int,
        Meta(description="most log-probabilities of a token that a request may ask for; -1: all", ge=-1, le=1 << 30),
    ] = 20
    logprobs_mode: Annotated[
        LogprobsMode,
        Meta(
            description="log-probabilities of generated tokens are the model's (raw_logprobs), or those of the draw, "
            "after penalties, temperature and filters (processed_logprobs)"
        ),
    ] = "raw_logprobs"
