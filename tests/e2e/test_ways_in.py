"""Each way into the engine, with the embedded model; and the examples, as a reader would run them."""

import ast
import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tqdm import tqdm

from pyllm import (
    LLM,
    AsyncEngine,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineClient,
    LLMEngine,
    RequestOutput,
    SamplingParams,
)
from pyllm.client.client import EngineClient as Client
from pyllm.errors import ConfigError, EngineDeadError, GivenUpError, RequestError
from pyllm.wire.messages import FinishCode
from tests import in_process
from tests.e2e.titles import find
from tests.in_process import KV_CACHE
from tests.tiers import full
from tests.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
FRANCE = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=4)
LONG_GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
ENDLESS = 8000  # tokens of a request that does not end by itself while a test runs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_precision_says_paris(dtype: str) -> None:
    with in_process.engine(dtype=dtype) as engine:
        one, two = in_process.generate(engine, [FRANCE, "The opposite of hot is"], GREEDY)
        assert one.outputs[0].text.startswith(" Paris")
        assert two.outputs[0].text
        (again,) = in_process.generate(engine, [FRANCE], GREEDY)
        assert again.outputs[0].text == one.outputs[0].text


CHAT_PROGRAM = """
from pyllm import LLM, EngineArgs, FlexibleArgumentParser

parser = FlexibleArgumentParser()
EngineArgs.add_cli_args(parser)
parser.add_argument_group("Sampling parameters").add_argument("--max-tokens", type=int)
args = vars(parser.parse_args())
max_tokens = args.pop("max_tokens")
llm = LLM(**args)
sampling_params = llm.get_default_sampling_params()
if max_tokens is not None:
    sampling_params.max_tokens = max_tokens
conversation = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say hello."}]
outputs = llm.chat([conversation] * 3, sampling_params, use_tqdm=False)
print([len(output.outputs[0].token_ids) for output in outputs])
"""


def test_a_chat_program_for_vllm_runs_when_its_import_is_changed() -> None:
    flags = ["--max_model_len", "512", "--dtype", "bfloat16", "--max-tokens", "5", "--seed", "7"]
    run = subprocess.run(
        [sys.executable, "-c", CHAT_PROGRAM, *flags], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lengths = ast.literal_eval(run.stdout)
    assert len(lengths) == 3
    assert all(0 < length <= 5 for length in lengths)


def test_llm_has_vllms_keywords() -> None:
    bars: list[Any] = []

    def bar(**options: Any) -> Any:
        bars.append(tqdm(**options, file=io.StringIO()))
        return bars[-1]

    with LLM(kv_cache_memory_bytes=KV_CACHE) as llm:
        params = llm.get_default_sampling_params()
        params.temperature, params.max_tokens = 0.0, 4
        assert llm.chat([{"role": "user", "content": "Hi"}], GREEDY)[0].finished
        (output,) = llm.generate({"prompt": FRANCE}, params, use_tqdm=bar)
        assert output.outputs[0].text.startswith(" Paris")
        assert (bars[0].n, bars[0].total) == (1, 1)
        ids = llm.get_tokenizer().encode(FRANCE)
        (same,) = llm.generate(prompts=[{"prompt_token_ids": ids}], sampling_params=params, use_tqdm=False)
        assert same.outputs[0].token_ids == output.outputs[0].token_ids
        template = "{% for message in messages %}{{ message.content }}{{ suffix }}{% endfor %}"
        (chat,) = llm.chat(
            [{"role": "user", "content": "The capital of"}],
            params,
            False,
            chat_template=template,
            chat_template_kwargs={"suffix": " France is"},
        )
        assert chat.outputs[0].token_ids == output.outputs[0].token_ids
        weather = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
        shown = "{{ tools[0].function.name }}"
        (tools,) = llm.chat([{"role": "user", "content": "x"}], params, tools=[weather], chat_template=shown)
        assert llm.get_tokenizer().decode(tools.prompt_token_ids) == "get_weather"
        (told,) = llm.chat([{"role": "user", "content": "x"}], params, tools=[weather])  # Its own template has none.
        assert told.prompt is not None
        assert "get_weather" in told.prompt
        begun = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I"}]
        (more,) = llm.chat(begun, params, add_generation_prompt=False, continue_final_message=True)
        assert llm.get_tokenizer().decode(more.prompt_token_ids).endswith("I")
        params.top_p = 2.0
        with pytest.raises(RequestError, match="top_p"):
            llm.generate(FRANCE, params)
        with pytest.raises(RequestError, match="lora_request must be a LoRARequest"):
            llm.chat(begun, GREEDY, True, "adapter")
        summary = llm.get_summary()
        assert summary.num_requests == 7
        assert summary.time_to_first_token.count == 7
        assert 0 < summary.time_to_first_token.p50 <= summary.end_to_end.max
        assert summary.memory_bytes > 100 << 20
        metrics = {metric.name: metric for metric in llm.get_metrics() if not metric.labels.get("finished_reason")}
        assert metrics["vllm:generation_tokens"].value == 28
        assert metrics["vllm:time_to_first_token_seconds"].count == 7


async def test_a_cancelled_task_ends_its_request_beside_another_engine(endless_model: str) -> None:
    options: dict[str, Any] = {"model": endless_model, "kv_cache_memory_bytes": KV_CACHE}
    async with AsyncEngine(**options) as one, AsyncEngine(**options) as other:
        endless = SamplingParams(max_tokens=ENDLESS, ignore_eos=True)
        task = asyncio.create_task(one.complete(FRANCE, endless))
        while not (await one.stats())["num_running"]:
            pass
        assert (await other.stats())["num_requests"] == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await one.stats())["num_requests"]:
            pass
        assert len((await other.complete(FRANCE, GREEDY)).outputs[0].token_ids) == 4


def test_llm_refuses_what_cannot_run_and_goes_on() -> None:
    with LLM(kv_cache_memory_bytes="64MiB") as llm:
        with pytest.raises(RequestError, match="8192"):
            llm.generate([[1] * 9000, FRANCE], GREEDY)
        with pytest.raises(RequestError, match="KV cache"):
            llm.generate([[1] * 4000], SamplingParams(max_tokens=10))
        for wrong in (SamplingParams(n=5000), "greedy"):
            with pytest.raises(RequestError, match=r"^sampling_params\[1\]:? "):
                llm.generate([FRANCE, FRANCE], [GREEDY, wrong])  # type: ignore[list-item]
        assert llm.stats()["num_requests"] == 0
        assert llm.generate(FRANCE, GREEDY)[0].outputs[0].text.startswith(" Paris")
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate(FRANCE, GREEDY)
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        LLM(max_num_seq=3)


def test_a_second_engine_leaves_the_path_of_kv_events_to_the_first(model: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "model": model,
        "kv_cache_memory_bytes": KV_CACHE,
        "enable_kv_cache_events": True,
        "kv_events_endpoint": f"ipc://{tmp_path}/events",
    }
    with LLM(**options) as first:
        core_of_ours().kill()  # Its successor has the path.
        assert first.generate(FRANCE, GREEDY)[0].outputs[0].text
        with pytest.raises(ConfigError, match=f"cannot listen on {tmp_path}/events: another pyllm"):
            LLM(**options)
        assert first.generate(FRANCE, GREEDY)[0].outputs[0].text
    with LLM(**options) as third:
        assert third.generate(FRANCE, GREEDY)[0].outputs[0].text


async def test_async_engine_streams_aborts_and_outlives_its_core() -> None:
    async with AsyncEngine(kv_cache_memory_bytes=KV_CACHE) as engine:
        outputs = [output async for output in engine.generate(FRANCE, GREEDY)]
        assert outputs[0].outputs[0].text.startswith(" Paris")
        assert [output.finished for output in outputs[-2:]] == [False, True]
        assert len(outputs[-1].outputs[0].token_ids) == 4
        endless = SamplingParams(max_tokens=5000, ignore_eos=True)
        async for output in engine.generate(FRANCE, endless):
            assert not output.finished
            break
        while (await engine.stats())["num_requests"]:
            pass
        aborted = engine.generate(FRANCE, endless, request_id="mine")
        await anext(aborted)
        engine.abort("mine")
        assert [output.outputs[0].finish_reason async for output in aborted][-1] == "abort"
        whole = await engine.complete(FRANCE, LONG_GREEDY)
        core = core_of_ours()
        outputs = []
        async for output in engine.generate(FRANCE, LONG_GREEDY):
            if not outputs:
                core.kill()
            outputs.append(output)
        assert outputs[-1].outputs[0].token_ids == whole.outputs[0].token_ids
        assert core_of_ours() != core


async def test_a_server_for_vllm_runs_when_its_import_is_changed() -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(max_model_len=512))

    async def last(request_id: str) -> RequestOutput:
        async for output in engine.generate(FRANCE, GREEDY, request_id=request_id):
            given = output
        return given

    one, other = await asyncio.gather(last("a"), last("b"))
    assert one.outputs[0].text == other.outputs[0].text
    assert one.outputs[0].text.startswith(" Paris")
    await engine.check_health()
    assert engine.is_running
    assert not engine.errored
    cores = [psutil.Process(pid) for pid in engine._processes.pids()]
    engine.shutdown()
    assert not engine.is_running
    _, alive = await asyncio.to_thread(psutil.wait_procs, cores, 30)
    assert cores
    assert not alive


async def test_async_engine_reports_a_core_that_dies_too_often(endless_model: str) -> None:
    async with AsyncEngine(endless_model, max_restarts=0, kv_cache_memory_bytes=KV_CACHE) as engine:
        doomed = engine.generate(FRANCE, SamplingParams(max_tokens=ENDLESS, ignore_eos=True))
        await anext(doomed)
        core_of_ours().kill()
        with pytest.raises(GivenUpError, match=r"core 0 was killed by SIGKILL while ready.*max_restarts allows 0"):
            _ = [output async for output in doomed]
        with pytest.raises(GivenUpError):
            await engine.complete(FRANCE, GREEDY)


@pytest.fixture(scope="module")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("endless"), max_position_embeddings=2 * ENDLESS)


def core_of_ours() -> psutil.Process:
    """That of the engine in this process; servers that other tests keep are processes of their own."""
    (core,) = find(os.getpid(), "pyllm::core-0", generations=1)
    return core


def test_llm_engine_steps() -> None:
    engine = LLMEngine(max_num_seqs=4, kv_cache_memory_bytes=KV_CACHE)
    engine.add_request("first", FRANCE, GREEDY)
    engine.add_request("second", FRANCE, SamplingParams(temperature=0, max_tokens=50))
    with pytest.raises(RequestError, match="running already"):
        engine.add_request("first", FRANCE, GREEDY)
    finished = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output.outputs[0].text
                assert engine.get_num_unfinished_requests() == 1
                engine.abort_request(["second"])
    assert list(finished) == ["first"]
    assert finished["first"].startswith(" Paris")
    assert engine.stats()["num_used_blocks"] == 0
    cached = []
    for name in ("a", "b", "c"):
        engine.add_request(name, [5] * 64, SamplingParams(max_tokens=1))
        while engine.has_unfinished_requests():
            cached += [output.num_cached_tokens > 0 for output in engine.step()]
        if name == "b":
            engine.reset_prefix_cache()
    assert cached == [False, True, False]
    for prompt in (None, [1.5], 7):
        with pytest.raises(RequestError, match="token ids"):
            engine.add_request("third", prompt, GREEDY)
    engine.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.add_request("third", FRANCE, GREEDY)
    with pytest.raises(EngineDeadError, match="closed"):
        engine.step()


def test_llm_engine_loses_nothing_when_a_request_fails() -> None:
    engine = LLMEngine(max_num_seqs=4, kv_cache_memory_bytes=KV_CACHE)
    # The first leaves no token to choose from, in the step in which the other one ends.
    impossible = SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=[5], bad_words_token_ids=[[5]])
    engine.add_request("ends", FRANCE, SamplingParams(temperature=0, max_tokens=1))
    engine.add_request("fails", FRANCE, impossible)
    outputs, failures = [], []
    while engine.has_unfinished_requests():
        try:
            outputs += engine.step()
        except RequestError as failure:
            failures.append(str(failure))
    assert [(output.request_id, output.finished) for output in outputs] == [("ends", True)]
    assert len(failures) == 1
    engine.close()


@pytest.mark.parametrize("options", [{"tensor_parallel_size": 3}, {"distributed_executor_backend": "mp"}])
def test_llm_engine_refuses_processes(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="use LLM"):
        LLMEngine(**options)


@pytest.fixture(scope="module")
def headless_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a core of the embedded model."""
    address = f"ipc://{tmp_path_factory.mktemp('core')}/core"
    core = subprocess.Popen(
        [sys.executable, "-m", "pyllm", "core", "--bind", address], stdout=subprocess.PIPE, text=True
    )
    yield address
    core.send_signal(signal.SIGTERM)
    core.communicate(timeout=60)
    assert core.returncode == 0


async def test_engine_client_against_a_headless_core(headless_core: str) -> None:
    client = await EngineClient.connect(headless_core, timeout=90)
    assert client.model.name == "SmolLM2-135M-Instruct.Q4_1"
    tokens: list[int] = []
    async for delta in client.generate([504, 3575, 282, 4649, 314], GREEDY):
        tokens += delta.tokens
        last = delta
    assert last.finish == FinishCode.LENGTH
    assert len(tokens) == 4
    stranger = await Client.connect(headless_core)
    assert (await stranger.call("stats"))["num_clients"] == 2
    with pytest.raises(RequestError, match="unknown method"):
        await stranger.call("explode")
    stranger.close()
    client.close()


async def test_random_bytes_on_the_core_socket_harm_nobody(headless_core: str) -> None:
    import random

    import zmq

    client = await EngineClient.connect(headless_core, timeout=90)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    noise = context.socket(zmq.DEALER)
    noise.connect(headless_core)
    generator = random.Random(0)
    for _ in range(300):
        noise.send_multipart([generator.randbytes(generator.randrange(200)) for _ in range(generator.randrange(1, 4))])
    assert noise.poll(60_000)  # it is told
    async for delta in client.generate([504, 3575, 282, 4649, 314], GREEDY):
        assert delta.tokens
    while (await client.call("stats"))["malformed_frames"] < 250:
        pass
    noise.close(0)
    context.destroy(0)
    client.close()


SIMILAR = ("async_engine.py", "engine_client.py", "offline_llm.py", "policy_gradient.py")


def examples() -> list[str]:
    found = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert len(found) >= 6
    return found


# Tests above, and those of weights, make the same calls as some.
@pytest.mark.parametrize("name", [full(name) if name in SIMILAR else name for name in examples()])
def test_example_runs(name: str) -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / name], capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stderr
    if name == "policy_gradient.py":
        shares = [int(share) for share in re.findall(r"(\d+)% of 256", result.stdout)]
        assert len(shares) == 7
        assert shares[-1] > shares[0] + 20
    else:
        assert "Paris" in result.stdout


async def test_engine_client_over_tcp_with_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    subprocess.run([sys.executable, "-m", "pyllm", "keygen", keys], check=True, stdout=subprocess.DEVNULL)
    model = write_tiny_model(tmp_path / "tiny")
    core = subprocess.Popen(
        [sys.executable, "-m", "pyllm", "core", model, "--bind", "tcp://127.0.0.1:0", "--curve-keys", keys],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert core.stdout is not None
    address = (await asyncio.to_thread(core.stdout.readline)).split()[-1]
    client = await EngineClient.connect(address, keys=keys)
    deltas = [delta async for delta in client.generate([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))]
    assert sum(len(delta.tokens) for delta in deltas) == 4
    client.close()
    core.send_signal(signal.SIGUSR1)  # As `systemctl reload` sends it; there is nothing to read again.
    with pytest.raises(EngineDeadError, match="want keys"):
        await EngineClient.connect(address)
    core.terminate()
    assert await asyncio.to_thread(core.wait, 60) == 0
    core.communicate()
