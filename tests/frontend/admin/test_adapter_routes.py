"""Adapters loaded and unloaded over HTTP, as on vLLM's server."""

from typing import Any

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.adapter_core import AdapterCore, adapter
from tests.frontend.admin.test_routes import ADMIN, BOTH, LOCAL, USER, bearer
from tests.frontend.serving import answering, in_process

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MINE = {"lora_name": "mine", "lora_path": "/a"}


async def test_an_adapter_is_loaded_replaced_and_unloaded(tokenizer: Tokenizer) -> None:
    core = AdapterCore()
    core.files["/a"] = "d1"
    async with in_process(core, tokenizer) as frontend:
        answer = await frontend.http.post(LOAD, json=MINE)
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'mine' added successfully.")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        again = await frontend.http.post(LOAD, json=MINE)
        assert again.status_code == 400
        assert "The lora adapter 'mine' has already been loaded." in again.text
        core.files["/a"] = "d2"
        assert (await frontend.http.post(LOAD, json={**MINE, "load_inplace": True})).status_code == 200
        assert frontend.client.find_adapter("mine") == adapter("mine", "d2", "/a")
        answer = await frontend.http.post(UNLOAD, json={"lora_name": "mine", "lora_int_id": 1})
        assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'mine' removed successfully.")
        gone = await frontend.http.post(UNLOAD, json={"lora_name": "mine"})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "adapter_not_found")
        assert gone.json()["error"]["message"] == "The lora adapter 'mine' cannot be found."


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (LOAD, {"lora_name": "mine"}, "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, {"lora_path": "/a"}, "Both 'lora_name' and 'lora_path' must be provided."),
        (LOAD, MINE, "there is no adapter /a"),
        (LOAD, {**MINE, "lora_name": "tiny"}, "'tiny' is the name of the model itself"),
        (LOAD, {**MINE, "is_3d_lora_weight": True}, "no expert has an adapter"),
        (UNLOAD, {}, "'lora_name' needs to be provided to unload a LoRA adapter."),
    ],
)
async def test_what_cannot_be_is_a_400_with_its_reason(
    path: str, body: dict[str, Any], text: str, tokenizer: Tokenizer
) -> None:
    async with in_process(AdapterCore(), tokenizer) as frontend:
        answer = await frontend.http.post(path, json=body)
        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_a_server_without_adapters_says_how_to_start_it(path: str, tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "x"), tokenizer) as frontend:
        answer = await frontend.http.post(path, json=MINE)
        assert answer.status_code == 400
        assert "start it with --enable-lora" in answer.text


async def test_with_keys_only_admins_may(tokenizer: Tokenizer) -> None:
    core = AdapterCore()
    core.files["/a"] = "d1"
    async with in_process(core, tokenizer, keys=BOTH) as frontend:
        for headers, status in (({}, 401), (bearer(USER), 403), (bearer(ADMIN), 200)):
            assert (await frontend.http.post(LOAD, json=MINE, headers=headers)).status_code == status
    server = ServerConfig(admin_on_loopback=True)
    async with in_process(AdapterCore(), tokenizer, keys=BOTH, server=server) as frontend:
        assert (await frontend.http.post(UNLOAD, json=MINE, headers=LOCAL)).status_code == 404
