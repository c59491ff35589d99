"""`LoRARequest`: the adapter of a request, in vLLM's form. Knows no engine."""

from typing import Any

import msgspec

from pyllm.errors import RequestError
from pyllm.parameters.arguments import NamedParameters, check, flag, integer, text
from pyllm.parameters.vllm_parameters import LORA, refuse_other_values


class LoRARequest(msgspec.Struct, metaclass=NamedParameters, frozen=True, forbid_unknown_fields=True):
    """An adapter by name, by a number above 0 of your choice, and by its folder, GGUF file or repository of the hub.

    It is loaded at its first use. Without a path it is one that is loaded already, or that `lora_folder` or
    `lora_repositories` has. With `load_inplace` each use reads its files again, and replaces it if they have changed.

    Raises:
        RequestError: a value has a wrong type, or vLLM's field is not supported.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None  # without an effect: an engine has one model
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        check("lora_name", self.lora_name, text("lora_name", self.lora_name) != "", "a name")
        number = integer("lora_int_id", self.lora_int_id)
        check("lora_int_id", number, number > 0, "above 0")
        if not isinstance(self.lora_path, str):
            raise RequestError(f"lora_path must be a text, got {self.lora_path!r:.80}", "lora_path")
        flag("load_inplace", self.load_inplace)
        refuse_other_values(LORA, {name: getattr(self, name) for name in LORA})

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """`lora_int_id`."""
        return self.lora_int_id

    @property
    def path(self) -> str:
        """`lora_path`."""
        return self.lora_path
