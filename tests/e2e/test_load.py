"""Two hundred streams at once, and a KV cache too small for those that run: every request finishes, nothing is left."""

import asyncio
import json

import httpx
import pytest

from pyllm import LLM, SamplingParams
from tests import in_process
from tests.e2e.server import Server, until

STREAMS = 200
TOKENS = 8


async def chat(client: httpx.AsyncClient, model: str, number: int) -> tuple[str, str]:
    """One streamed chat; gives its text and finish reason."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    text, reason = "", ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        # A comment keeps a stream alive that waits for long, as beside other work.
        lines = [line async for line in response.aiter_lines() if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        (choice,) = json.loads(line.removeprefix("data: "))["choices"]
        text += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
    return text, reason


async def test_200_concurrent_streams_all_finish_and_leave_nothing(server: Server) -> None:
    model = server.model()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.address, timeout=240.0) as client:
        alone = await chat(client, model, 0)
    before = open_files(server)
    async with httpx.AsyncClient(base_url=server.address, timeout=240.0, limits=limits) as client:
        answers = await asyncio.gather(*(chat(client, model, number) for number in range(STREAMS)))
    assert len(answers) == STREAMS
    assert {reason for _, reason in answers} == {"length"}
    assert answers[0] == alone
    assert all(text for text, _ in answers)
    # What is in use now is what the prefix cache holds, which is to say: nothing is referenced.
    until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0, "all blocks to be free")
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:num_requests_waiting") == 0
    until(lambda: all(open_files(server)[title] <= before[title] for title in before), "sockets to be closed")
    assert [process.pid for process in server.processes()] == [process.pid for process in server.tree]


def open_files(server: Server) -> dict[str, int]:
    return {process.cmdline()[0]: process.num_fds() for process in server.tree}


@pytest.mark.full
def test_preempted_requests_finish_with_the_same_tokens() -> None:
    prompts = [f"A short story about the number {number}:" for number in range(12)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with in_process.engine(dtype="float32") as roomy:
        expected = in_process.tokens(in_process.generate(roomy, prompts, params))
        assert roomy.stats()["num_preemptions"] == 0
    # 15 blocks of 16 tokens for 12 requests of about 50 tokens each, admitted without a thought of their growth.
    tight_cache = {"num_gpu_blocks_override": 15, "expected_growth": 0.0, "watermark": 0.0}
    with LLM(dtype="float32", max_model_len=128, **tight_cache) as tight:
        assert in_process.tokens(tight.generate(prompts, params)) == expected
        stats = tight.stats()
    assert stats["num_preemptions"] > 0
    assert stats["num_used_blocks"] == 0
