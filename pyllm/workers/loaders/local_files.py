"""The files on this machine of a model whose description was read on another one.

Does not know the other machine, and copies nothing.
"""

import socket
from pathlib import Path

import msgspec

from pyllm.checkpoint.types import Checkpoint
from pyllm.config.model_settings import ModelConfig
from pyllm.errors import ConfigError


def on_this_machine(checkpoint: Checkpoint, model: ModelConfig) -> Checkpoint:
    """The checkpoint with files on this machine: the paths that it names, else those of the model's name or path.

    Raises:
        ConfigError: this machine has no such model, or one with other weights.
    """
    named = [path for path in (*checkpoint.files, checkpoint.tokenizer.path) if path]
    missing = [path for path in named if not Path(path).exists()]
    if not missing:
        return checkpoint
    from pyllm.checkpoint.hub import Hub  # On the machine that has read the description, no worker needs it.
    from pyllm.checkpoint.model_name import at_revision
    from pyllm.checkpoint.reader import read_checkpoint

    host = socket.gethostname()
    try:
        found = read_checkpoint(
            at_revision(model.model, model.revision, "revision"),
            Hub(cache_dir=model.download_dir or None),
            at_revision(model.tokenizer, model.tokenizer_revision, "tokenizer_revision"),
            implementation=model.model_impl,
            overrides=model.hf_overrides,
        )
    except ConfigError as error:
        raise ConfigError(
            f"{host} has no {missing[0]}, and no model {model.model!r} either: {error}; every node needs the model's "
            "files, at the same path or under the same name of the hub"
        ) from None
    if found.fingerprint != checkpoint.fingerprint:
        raise ConfigError(
            f"the model {model.model!r} on {host} has other weights than where pyllm was started (fingerprint "
            f"{found.fingerprint}, not {checkpoint.fingerprint}): copy the same files to every node"
        )
    tokenizer = msgspec.structs.replace(checkpoint.tokenizer, path=found.tokenizer.path)
    return msgspec.structs.replace(checkpoint, files=found.files, tokenizer=tokenizer)
