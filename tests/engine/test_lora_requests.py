"""Adapters as programs name them: by `LoRARequest`, loaded at their first use."""

from typing import Any

import pytest

from pyllm import LoRARequest
from pyllm.engine.lora_requests import LoraRequests
from pyllm.errors import RequestError
from pyllm.parameters.scheduling_params import DEFAULT_SCHEDULING, SchedulingParams
from pyllm.wire.messages import Call
from tests.client.adapter_core import AdapterCore, adapter
from tests.client.fake_core import connected


async def test_an_adapter_is_loaded_at_its_first_use() -> None:
    core = AdapterCore(adapters=[adapter("there")])
    core.files["/a"] = "d5"
    client = await connected(core)
    loras = LoraRequests(lambda: client)
    assert await loras.chosen(DEFAULT_SCHEDULING, None) == DEFAULT_SCHEDULING
    for _ in range(2):
        assert await loras.chosen(SchedulingParams(priority=2), LoRARequest("mine", 7, "/a")) == SchedulingParams(
            priority=2, adapter="mine@d5"
        )
    assert len(core.sent(Call)) == 1
    assert (await loras.chosen(DEFAULT_SCHEDULING, LoRARequest("there", 1))).adapter == "there@d1"
    assert loras.numbers == {1, 7}
    assert not await loras.add(LoRARequest("mine", 7, "/a"))
    core.files["/a"] = "d6"
    assert not await loras.add(LoRARequest("mine", 7, "/a"))
    assert await loras.add(LoRARequest("mine", 7, "/a", load_inplace=True))
    assert await loras.remove(7)
    assert not await loras.remove(7)
    assert loras.numbers == {1}
    client.close()


async def test_what_cannot_be_meant_is_refused() -> None:
    core = AdapterCore(adapters=[adapter("there")])
    client = await connected(core)
    loras = LoraRequests(lambda: client)
    with pytest.raises(RequestError, match="there is no adapter /b"):
        await loras.add(LoRARequest("mine", 7, "/b"))
    assert loras.numbers == set()
    await loras.add(LoRARequest("there", 1))
    with pytest.raises(RequestError, match="lora_int_id 1 is that of the adapter 'there': give 'mine' another number"):
        await loras.add(LoRARequest("mine", 1, "/a"))
    with pytest.raises(RequestError, match=r"lora_request and scheduling\.adapter name two adapters"):
        await loras.chosen(SchedulingParams(adapter="there"), LoRARequest("there", 1))
    client.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"lora_name": ""}, "lora_name must be a name"),
        ({"lora_name": 3}, "lora_name must be a text"),
        ({"lora_int_id": 0}, "lora_int_id must be above 0, got 0"),
        ({"lora_int_id": "x"}, "lora_int_id must be"),
        ({"lora_path": None}, "lora_path must be a text"),
        ({"is_3d_lora_weight": True}, "is_3d_lora_weight can only be False here, got True: adapters of experts"),
        ({"lora_local_path": "/a"}, "LoRARequest has no 'lora_local_path'"),
    ],
)
def test_a_request_is_checked(given: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        LoRARequest(**{"lora_name": "mine", "lora_int_id": 1, **given})


def test_it_has_the_names_of_vllm() -> None:
    request = LoRARequest("mine", 3, "/a", base_model_name="ignored")
    assert (request.name, request.adapter_id, request.path) == ("mine", 3, "/a")
