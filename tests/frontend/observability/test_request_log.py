import logging

import pytest

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.serving import answering, in_process

BODY = {"prompt": "my secret prompt", "max_tokens": 9, "temperature": 0.5}
NAMED = {"x-request-id": "r-1"}


async def lines_of(
    server: ServerConfig, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> list[logging.LogRecord]:
    caplog.set_level(logging.DEBUG)
    async with in_process(answering(tokenizer, "an answer"), tokenizer, server=server) as frontend:
        assert (await frontend.http.post("/v1/completions", json=BODY, headers=NAMED)).status_code == 200
    return [record for record in caplog.records if record.name.startswith("pyllm")]


async def test_nothing_of_a_request_is_logged_unless_asked(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    await lines_of(ServerConfig(), tokenizer, caplog)
    assert "secret" not in caplog.text
    assert "answer" not in caplog.text


async def test_requests_and_outputs_are_logged_with_their_ids(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerConfig(enable_log_requests=True, enable_log_outputs=True)
    received, ended = await lines_of(server, tokenizer, caplog)
    assert [record.__dict__["request_id"] for record in (received, ended)] == ["r-1", "r-1"]
    assert received.getMessage().startswith("request r-1 received: ")
    assert "temperature=0.5" in received.getMessage()
    assert "'my secret prompt'" in received.getMessage()
    assert ended.getMessage().endswith("'an answer'")
    assert "choice 0 ended (length)" in ended.getMessage()


async def test_long_texts_are_shortened(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    server = ServerConfig(enable_log_requests=True, enable_log_outputs=True, max_log_len=4)
    received, ended = await lines_of(server, tokenizer, caplog)
    assert received.getMessage().endswith("prompt 'my s'")
    assert ended.getMessage().endswith("'an a'")
