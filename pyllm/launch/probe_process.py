"""Asks a short-lived process what transformers makes of a model, and keeps the answer in the user's cache folder.

That process alone imports torch and transformers. Does not know what it does.
"""

import hashlib
import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from pyllm.checkpoint.cache import CacheError, cache_folder, write_file
from pyllm.errors import ConfigError
from pyllm.families.transformers_probe import Probed, ProbeRequest, Refusal

logger = logging.getLogger(__name__)

PROBE = "pyllm.workers.transformers_backend.probe"
TIMEOUT = 300.0  # seconds: an import from a slow disk takes a minute


def ask_process(content: bytes) -> Probed:
    """Give a request as JSON to a new process, and wait for its answer.

    Raises:
        ConfigError: the model is refused, or the process failed.
    """
    command = [sys.executable, "-m", PROBE]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigError(f"transformers did not build the model within {TIMEOUT:.0f} s") from None
    try:
        answer: Probed | Refusal = msgspec.json.decode(done.stdout, type=Probed | Refusal)
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise ConfigError(f"the process that asks transformers failed with {done.returncode}: {last[0]}") from None
    if isinstance(answer, Refusal):
        raise ConfigError(answer.refused)
    return answer


def probe_model(request: ProbeRequest, ask: Callable[[bytes], Probed] = ask_process) -> Probed:
    """What transformers makes of a model, asked now or once before.

    Raises:
        ConfigError: it has no such model, or cannot run it with our attention.
    """
    content = msgspec.json.encode(request, order="deterministic")
    try:
        path = cache_folder() / f"{_key(content)}.probed"
        if (kept := _read(path)) is not None:
            return kept
        probed = ask(content)
        write_file(path, msgspec.msgpack.encode(probed))
    except CacheError as error:
        logger.warning("what transformers makes of the model is not kept: %s", error)
        return ask(content)
    return probed


def _key(content: bytes) -> str:
    """Of a request, of transformers, and of the code that asks it."""
    digest = hashlib.blake2b(content + version("transformers").encode(), digest_size=16)
    for module in sorted((Path(__file__).parents[1] / "workers" / "transformers_backend").glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Probed | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Probed)
    except (OSError, msgspec.MsgspecError):
        return None
