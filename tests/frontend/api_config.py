"""What an API process is told, for a core without a model."""

from pathlib import Path
from typing import Any

import msgspec

from pyllm.config.process_config import ApiConfig, SharedConfig
from pyllm.config.server_settings import ServerConfig
from tests.frontend.serving import TEMPLATE
from tests.frontend.text import tiny_tokenizers
from tests.frontend.tiny_checkpoint import tiny_checkpoint

SHARED = SharedConfig()


def api_config(folder: Path, core_address: str, *, shared: SharedConfig = SHARED, **changes: Any) -> ApiConfig:
    """A process with the byte-level tokenizer, which is written to `folder`."""
    files = tiny_tokenizers.write(tiny_tokenizers.byte_level(), folder)
    files = msgspec.structs.replace(files, chat_template=TEMPLATE)
    checkpoint = tiny_checkpoint(files)
    return ApiConfig(
        server=ServerConfig(shutdown_timeout=60.0, ready_timeout=60.0),
        shared=msgspec.structs.replace(shared, core_addresses=(core_address,)),
        checkpoint=checkpoint,
        served_model_name=("tiny",),
        **changes,
    )
