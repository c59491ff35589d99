"""Describes a transformers model in a short-lived process, and keeps the result in the user's cache folder.

Only that process imports torch and transformers. Does not know how a model is probed.
"""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from pyllm.checkpoint.cache import CacheError, cache_folder, write_file
from pyllm.errors import ConfigError
from pyllm.families.transformers_probe import Probed, ProbeRequest, Refusal
from pyllm.machine.extras import TRANSFORMERS_PACKAGES, is_installed, missing_extra

logger = logging.getLogger(__name__)

PROBE = "pyllm.workers.transformers_backend.probe"
TIMEOUT = 300.0  # seconds; an import from a slow disk takes a minute


def ask_process(content: bytes) -> Probed:
    """Send a request as JSON to a new process, and wait for its answer.

    Raises:
        ConfigError: the model is refused, or the process failed.
    """
    # -P: import nothing from the current folder, which may be the model's. It must not download kernels, either.
    command = [sys.executable, "-P", "-m", PROBE]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, input=content, capture_output=True, timeout=TIMEOUT, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"transformers did not build the model within {TIMEOUT:.0f} s: try again, as its files are then in memory"
        ) from None
    try:
        answer: Probed | Refusal = msgspec.json.decode(done.stdout, type=Probed | Refusal)
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise ConfigError(
            f"the process that asks transformers {version('transformers')} failed with {done.returncode}: "
            f"{last[0]:.300}; use a model that a family computes, or another version of transformers"
        ) from None
    if isinstance(answer, Refusal):
        raise ConfigError(answer.refused)
    return answer


def probe_model(
    request: ProbeRequest,
    ask: Callable[[bytes], Probed] = ask_process,
    has_package: Callable[[str], bool] = is_installed,
) -> Probed:
    """The description of a model by transformers, from the cache if it is there.

    Raises:
        ConfigError: transformers is not installed, has no such model, or cannot run it with our attention.
    """
    if missing := next((name for name in TRANSFORMERS_PACKAGES if not has_package(name)), ""):
        raise ConfigError(f"transformers computes this model, and {missing_extra('transformers', missing)}")
    content = msgspec.json.encode(request, order="deterministic")
    try:
        path: Path | None = cache_folder() / f"{_key(content)}.probed"
    except CacheError as error:
        logger.warning("what transformers makes of the model is not kept: %s", error)
        path = None
    if path is not None and (kept := _read(path)) is not None:
        return kept
    probed = ask(content)
    if path is not None:
        try:
            write_file(path, msgspec.msgpack.encode(probed))
        except CacheError as error:
            logger.warning("what transformers makes of the model is not kept: %s", error)
    return probed


def _key(content: bytes) -> str:
    """The cache key: a digest of the request, the version of transformers, and the code that probes."""
    digest = hashlib.blake2b(content + version("transformers").encode(), digest_size=16)
    for module in sorted((Path(__file__).parents[1] / "workers" / "transformers_backend").glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Probed | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Probed)
    except (OSError, msgspec.MsgspecError):
        return None
