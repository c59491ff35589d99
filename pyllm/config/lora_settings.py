"""The settings of LoRA adapters, in vLLM's names. Reads no adapter."""

from typing import Annotated

import msgspec
from msgspec import Meta

from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.errors import ConfigError

MAX_LORA_RANK = 256
MAX_LORAS = 256


class LoraModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name for requests, and the folder, GGUF file or hub repository of its adapter."""

    name: str
    path: str
    base_model_name: str | None = None  # is taken as in vLLM; the model is the server's


class LoraConfig(ConfigPart, frozen=True):
    """LoRA adapters, which requests choose by name."""

    enable_lora: Annotated[bool, Meta(description="serve LoRA adapters beside the model")] = False
    lora_modules: Annotated[
        tuple[str, ...],
        Meta(description='adapters at the start: NAME=PATH, or {"name": NAME, "path": PATH}; PATH may be of the hub'),
        TextForm(num_words="+", metavar="NAME=PATH"),
    ] = ()
    max_loras: Annotated[int, Meta(description="adapters on the device: those of one step", ge=1, le=MAX_LORAS)] = 4
    max_lora_rank: Annotated[
        int, Meta(description="the largest rank of an adapter; memory is kept for it", ge=1, le=MAX_LORA_RANK)
    ] = 16
    max_cpu_loras: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="adapters in the host's memory, max_loras at least; others are read from disk again"),
    ] = None
    lora_folder: Annotated[
        str,
        Meta(description="a request for an unknown model NAME loads the adapter in the folder NAME within this one"),
        TextForm(metavar="FOLDER"),
    ] = ""
    lora_repositories: Annotated[
        tuple[str, ...],
        Meta(
            description="a request for one of these repositories of the hub (OWNER/NAME, or OWNER/* for all of an "
            "owner's) loads it as an adapter"
        ),
        TextForm(num_words="+", metavar="OWNER/NAME"),
    ] = ()

    @property
    def num_on_host(self) -> int:
        """Adapters in the host's memory."""
        return max(self.max_loras, self.max_cpu_loras or 0)

    @property
    def num_slots(self) -> int:
        """Device slots; 0 without adapters."""
        return self.max_loras if self.enable_lora else 0


def lora_module(text: str) -> LoraModule:
    """An adapter as `lora_modules` names it.

    Raises:
        ConfigError: the text is neither NAME=PATH nor such an object.
    """
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=LoraModule)
        except msgspec.DecodeError as error:
            raise ConfigError(f"lora_modules: {text!r:.200}: {error}") from None
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"lora_modules: {text!r:.200} is neither NAME=PATH nor a JSON object with name and path")
    return LoraModule(name, path)
