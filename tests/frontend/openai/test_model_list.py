"""A server has one model under all its names: each is listed and taken, and answers carry the first."""

from pathlib import Path
from typing import Any

from pyllm.config.server_settings import ServerConfig
from pyllm.frontend.text.tokenizer import Tokenizer
from tests.frontend.serving import answering, in_process
from tests.frontend.text import tiny_tokenizers


async def capabilities(tokenizer: Tokenizer, **options: Any) -> dict[str, bool]:
    async with in_process(answering(tokenizer, "ok"), tokenizer, **options) as frontend:
        (card,) = (await frontend.http.get("/v1/models")).json()["data"]
    return {name: can for name, can in card["capabilities"].items() if can}


async def test_a_card_says_what_the_model_can_do(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert await capabilities(tokenizer) == {"completion_chat": True, "function_calling": True}
    without_calls = ServerConfig(tool_call_parser="none")
    assert await capabilities(tokenizer, server=without_calls) == {"completion_chat": True}
    made = tiny_tokenizers.byte_level()
    made.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    assert await capabilities(tiny_tokenizers.load(made, tmp_path), template=None) == {"completion_fim": True}


async def test_every_name_is_listed_and_taken_and_answers_carry_the_first(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, model_aliases=["team/chat", "gpt"]) as frontend:
        listed = (await frontend.http.get("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == ["tiny", "team/chat", "gpt"]
        assert {card["root"] for card in listed} == {"tiny"}
        for name in ("tiny", "team/chat", "gpt", None):
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
            answer = await frontend.http.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
        assert (await frontend.http.get("/v1/models/team/chat")).json()["id"] == "team/chat"


async def test_another_name_is_refused_with_those_there_are(tokenizer: Tokenizer) -> None:
    async with in_process(answering(tokenizer, "ok"), tokenizer, model_aliases=["gpt"]) as frontend:
        for answer in (
            await frontend.http.get("/v1/models/other"),
            await frontend.http.post("/v1/completions", json={"model": "other", "prompt": "x"}),
        ):
            assert answer.status_code == 404
            text = "The model 'other' does not exist; this server has 'tiny', 'gpt'."
            assert answer.json()["error"]["message"] == text
