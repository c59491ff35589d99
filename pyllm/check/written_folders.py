"""The folders that pyllm and its libraries write to, by their purpose. Creates none and reads none."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pyllm.checkpoint.cache import cache_folder
from pyllm.supervision.flight_recorder import resolve_folder

PACKED_WEIGHTS = "packed weights"
SOCKETS = "sockets"


def written_folders(environment: Mapping[str, str] = os.environ) -> dict[str, Callable[[], Path]]:
    """A function for each purpose that finds the folder, and raises an error where there can be none."""
    return {
        PACKED_WEIGHTS: lambda: cache_folder(environment),
        "models of the hub": _hub_cache,
        "Triton's kernels": lambda: Path(environment.get("TRITON_CACHE_DIR") or Path.home() / ".triton/cache"),
        "records of crashes": lambda: Path(resolve_folder("")),
        SOCKETS: lambda: Path(environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()),
    }


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()
