"""Finds an adapter on this machine or the hub, and reads its description (LoRA, arXiv 2106.09685)."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pyllm.checkpoint.adapters.gguf_adapter import read_gguf_adapter
from pyllm.checkpoint.adapters.peft_folder import CONFIG, PICKLED, WEIGHTS, read_peft
from pyllm.checkpoint.hub import Hub, find_model
from pyllm.checkpoint.hub_files import choose_gguf
from pyllm.checkpoint.model_name import HubName, parse_model
from pyllm.checkpoint.types import LoraAdapter
from pyllm.errors import ConfigError
from pyllm.families.spec import ModelSpec


def read_lora(path: Path, spec: ModelSpec) -> LoraAdapter:
    """The adapter in a folder of peft or in a GGUF file, for a model of `spec`.

    Raises:
        ConfigError: a file is missing or damaged, the adapter is of another model, or needs an unsupported feature.
    """
    if spec.transformers is not None:
        raise ConfigError(f"adapters need a native family, and transformers computes {spec.architecture}")
    read = read_gguf_adapter if path.is_file() else read_peft
    try:
        return read(path, spec)
    except OSError as error:
        raise ConfigError(f"the adapter {path} cannot be read: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"adapter {path}: {error}") from None


def find_lora(name: str, hub: Hub) -> Path:
    """The folder or GGUF file of an adapter: a path on this machine, or a repository of the hub, which is downloaded.

    Raises:
        ConfigError: it does not exist, or cannot be downloaded now.
    """
    place = parse_model(name)
    if isinstance(place, HubName):
        return find_model(place, hub, _collect)
    if not place.exists():
        raise ConfigError(f"there is no adapter {place}")
    return place


def _collect(name: HubName, names: Iterable[str], get: Callable[[str], Path]) -> Path:
    """Get the files of an adapter in a repository; returns its folder, or its GGUF file."""
    files = set(names)
    if CONFIG not in files or WEIGHTS not in files:
        if name.file or name.quantization or any(file.lower().endswith(".gguf") for file in files):
            return get(choose_gguf(name, files))
        pickled = f"; it has {PICKLED}, which may run code" if PICKLED in files else ""
        raise ConfigError(f"{name.repository} has no {CONFIG} and {WEIGHTS}{pickled}")
    get(WEIGHTS)
    return get(CONFIG).parent
