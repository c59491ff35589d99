"""What SGLang's gateway and vLLM's router read of a server: names, sizes, and the load as it is."""

import msgspec
import pytest

from pyllm.config.api_keys import ApiKey, KeyRing, new_key
from pyllm.errors import GivenUpError
from pyllm.frontend.text.templates import no_chat_template
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.client.fake_core import MODEL
from tests.frontend.serving import answering, in_process

ROUTES = ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/load", "/get_load")


async def test_the_server_and_its_model_are_described(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        server = (await frontend.http.get("/server_info")).json()
        assert (server["served_model_name"], server["model_path"], server["dp_size"]) == ("tiny", "tiny", 1)
        assert server["max_running_requests"] == MODEL.max_num_seqs
        assert server["max_total_tokens"] == MODEL.kv_cache_tokens
        assert (await frontend.http.get("/get_server_info")).json() == server
        model = (await frontend.http.get("/model_info")).json()
        assert (model["model_path"], model["is_generation"]) == ("tiny", True)
        assert (await frontend.http.get("/get_model_info")).json() == model


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
async def test_whether_the_model_can_chat_is_told(tokenizer: Tokenizer, template: str | None) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, template) as frontend:
        model = (await frontend.http.get("/model_info")).json()
        assert model["has_chat_template"] is (template is not None)
        assert model["chat_template_notice"] == ("" if template else no_chat_template("tiny"))
        refused = await frontend.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        )
    if template is None:
        assert "give one by --chat-template FILE" in refused.json()["error"]["message"]


async def test_the_load_is_what_runs_and_waits(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        frontend.core.stats |= {"num_waiting": 2, "num_held": 1, "num_loading": 3}
        assert (await frontend.http.get("/load")).json() == {"server_load": 6, "load": 6}
        # The scripted core uses 8 blocks of 16 tokens.
        assert (await frontend.http.get("/get_load")).json() == {"server_load": 6, "load": 6}


@pytest.mark.parametrize("path", ["/load", "/get_load"])
async def test_there_is_no_load_without_a_core(tokenizer: Tokenizer, path: str) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer) as frontend:
        frontend.client.give_up(GivenUpError("core 0 died 10 times"))
        response = await frontend.http.get(path)
        assert response.status_code == 503
        assert "core 0 died 10 times" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ROUTES)
async def test_they_take_a_key_where_there_are_keys(tokenizer: Tokenizer, path: str) -> None:
    key, entry = new_key("router")
    ring = KeyRing([msgspec.json.decode(entry, type=ApiKey)])
    async with in_process(answering(tokenizer, "ok"), tokenizer, keys=ring) as frontend:
        assert (await frontend.http.get(path)).status_code == 401
        assert (await frontend.http.get(path, headers={"authorization": f"Bearer {key}"})).status_code == 200
