"""The setting that chooses a KV connector, an object with vLLM's keys. Knows no connector."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pyllm.config.option_fields import ConfigPart, TextForm
from pyllm.errors import ConfigError

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]


class KVTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The connector that moves KV blocks into and out of the engine, with its options.

    A producer only saves, a consumer only loads. `kv_connector` names a connector of pyllm, an entry point of the group
    `pyllm.kv_connectors`, or with `kv_connector_module_path` an attribute of that module.
    """

    kv_connector: str
    kv_role: KVRole = "kv_both"
    kv_connector_module_path: str | None = None
    kv_connector_extra_config: dict[str, Any] = {}
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"

    @property
    def saves(self) -> bool:
        """Whether blocks are saved."""
        return self.kv_role != "kv_consumer"

    @property
    def loads(self) -> bool:
        """Whether blocks are loaded."""
        return self.kv_role != "kv_producer"


def read_kv_transfer(text: str) -> KVTransferConfig | None:
    """The setting from its JSON; None for an empty text.

    Raises:
        ConfigError: the text is no such object. The text names the key at fault and shows nothing of
            kv_connector_extra_config, where there may be passwords.
    """
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text, type=KVTransferConfig)
    except msgspec.DecodeError as error:
        keys = ", ".join(KVTransferConfig.__struct_fields__)
        raise ConfigError(
            f"cannot read kv_transfer_config: {error}; write a JSON object, whose keys are {keys}"
        ) from None


class KVTransferSettings(ConfigPart, frozen=True):
    """The connector that loads and saves KV blocks."""

    kv_transfer_config: Annotated[
        KVTransferConfig | None,
        Meta(
            description="connector that loads and saves KV blocks outside, as a JSON object with vLLM's keys: "
            "kv_connector, kv_role, kv_connector_module_path, kv_connector_extra_config, kv_load_failure_policy"
        ),
        TextForm(parse=read_kv_transfer, metavar="JSON", is_secret=True),
    ] = None
