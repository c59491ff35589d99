"""`pyllm batch`: runs a file of requests in OpenAI's batch format, on a model in this process tree or on a server."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from pyllm import log
from pyllm.batch.answer_file import AnswerFile
from pyllm.batch.batch_run import check_template, run_batch
from pyllm.batch.request_file import RequestFile, WrongLinesError
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import config_part
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.flags.engine_arguments import MODEL_HELP, announce, read_engine
from pyllm.flags.settings_flags import (
    SettingsParser,
    add_engine_settings,
    add_settings,
    add_vllm_flags,
    given_settings,
)
from pyllm.flags.trust_flags import add_trust_flags, trust_of
from pyllm.wire.server_address import server_address, server_key

PARSER = SettingsParser
TAKES_CONFIG = True
USAGE = "pyllm batch -i FILE -o FILE [MODEL | --base-url URL] [--FLAG VALUE ...]"
COMMON = (
    *("input-file", "output-file", "base-url", "api-key", "max-concurrency", "served-model-name", "max-model-len"),
    *("max-num-seqs", "kv-cache-memory-bytes", "tensor-parallel-size", "config"),
)
# Server settings that change answers or the start of the server.
SERVER_SETTINGS = frozenset(
    {
        *("tool_call_parser", "reasoning_parser", "default_chat_template_kwargs", "response_role"),
        *("return_tokens_as_token_ids", "request_timeout", "max_request_body_bytes", "unknown_fields"),
        *("api_server_count", "ready_timeout"),
    }
)
EXAMPLES = """examples:
  pyllm batch -i in.jsonl -o out.jsonl                                     the embedded model
  pyllm batch -i in.jsonl -o out.jsonl Qwen/Qwen3-0.6B                     any model that `pyllm serve` takes
  pyllm batch -i in.jsonl -o out.jsonl --base-url http://127.0.0.1:8000    a server that runs

The same command again goes on where a run ended, however it ended."""

# Concurrent requests for each sequence that can run: a request always waits in the engine's queue.
_REQUESTS_PER_SEQUENCE = 2
_REMOTE_CONCURRENCY = 256
_FAILED, _INTERRUPTED = 1, 130
_MAX_PROBLEMS = 20  # that are listed


def add_arguments(parser: SettingsParser) -> None:
    """Declare the command's arguments."""
    parser.usage = USAGE
    parser.shorten_help(COMMON)
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        *("-i", "--input-file"),
        type=Path,
        required=True,
        metavar="FILE",
        help="requests, a JSON object a line: custom_id, method, url, body",
    )
    parser.add_argument(
        "-o", "--output-file", type=Path, required=True, metavar="FILE", help="answers; what it has is not asked again"
    )
    parser.add_argument("--base-url", metavar="URL", help="a running server, instead of a model: http://HOST:PORT")
    # `api_key` is a setting of a server that is started here.
    parser.add_argument(
        "--api-key", dest="server_key", metavar="KEY", help="its key; else OPENAI_API_KEY, if that is set"
    )
    add_trust_flags(parser)
    parser.add_argument(
        "--max-concurrency",
        type=_positive,
        metavar="N",
        help=f"requests at once (default: {_REQUESTS_PER_SEQUENCE} times --max-num-seqs, or {_REMOTE_CONCURRENCY} "
        "with --base-url)",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags and values: max-model-len: 4096")
    add_settings(parser, ServerConfig, SERVER_SETTINGS)
    add_engine_settings(parser)
    add_vllm_flags(parser)
    parser.epilog = EXAMPLES


def run(options: argparse.Namespace) -> int:
    """Answer all requests that have no answer yet; return 1 where any request of the file failed, now or before."""
    base_url, trust = _base_url(options), trust_of(options)
    engine, notices = read_engine(options)
    given = given_settings(options, ServerConfig)
    server = config_part(ServerConfig, {"disable_log_stats": True} | given)
    with (
        _read_requests(options.input_file) as requests,
        AnswerFile(options.output_file, {request.custom_id for request in requests.requests}) as answers,
    ):
        if len(answers.answered) == len(requests.requests):
            print(f"all {len(requests.requests)} requests have an answer in {options.output_file} already")
            return _FAILED if answers.num_failed else 0

        async def work(address: str, count: int, socket: str = "") -> None:
            import httpx2

            from pyllm.wire.server_client import CONNECT_TIMEOUT, open_client

            timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)
            key = server_key(options.server_key) if base_url else ""
            async with open_client(address, key, trust, timeout, max_connections=count, socket=socket) as http:
                totals = await run_batch(requests, answers, http, count)
            rate = totals.num_output_tokens / totals.seconds
            print(
                f"{totals.num_answered} requests answered in {totals.seconds:.1f} s, {rate:,.0f} output tokens/s: "
                f"{options.output_file} has {len(answers.answered)} answers, {answers.num_failed} of them errors"
            )

        try:
            if base_url:
                asyncio.run(work(base_url, options.max_concurrency or _REMOTE_CONCURRENCY))
                is_done = True
            else:
                check = partial(check_template, requests, answers)
                is_done = _serve(engine, server, notices, options.max_concurrency, work, check=check)
        except KeyboardInterrupt:
            is_done = False
        if not is_done:
            print(
                f"interrupted: {len(answers.answered)} of {len(requests.requests)} requests have an answer; the same "
                "command goes on from there",
                file=sys.stderr,
            )
            return _INTERRUPTED
        return _FAILED if answers.num_failed else 0


def _read_requests(path: Path) -> RequestFile:
    """Open the request file. Where several lines are wrong, print them all before raising the error."""
    try:
        return RequestFile(path)
    except WrongLinesError as error:
        if len(error.problems) > 1:
            for problem in error.problems[:_MAX_PROBLEMS]:
                print(f"{path}, {problem}", file=sys.stderr)
        raise


def _serve(
    engine: EngineConfig,
    server: ServerConfig,
    notices: list[str],
    concurrency: int | None,
    work: Callable[[str, int, str], Coroutine[None, None, None]],
    *,
    check: Callable[[str], None],
) -> bool:
    """Start a server and run `work` on it; False where a signal ended the work.

    Before the model is loaded, `check` gets the notice that it has no chat template, or an empty text.
    """
    from pyllm.launch import serve as launcher
    from pyllm.launch.model_overrides import chat_template_notice

    log.configure("pyllm::serve", engine.log)
    announce(notices)

    async def on_ready(socket: str, resolved: EngineConfig) -> None:
        count = concurrency or _REQUESTS_PER_SEQUENCE * resolved.scheduler.max_num_seqs
        await work("http://localhost", count, socket)

    return launcher.serve_for(engine, server, on_ready, lambda checkpoint: check(chat_template_notice(checkpoint)))


def _base_url(options: argparse.Namespace) -> str:
    """The server's address without `/v1`; empty where the command serves a model itself."""
    if options.base_url is None:
        if options.server_key is not None:
            raise ConfigError("--api-key is for a server that runs: give --base-url, too")
        if options.cacert or options.insecure:
            raise ConfigError("--cacert and --insecure are for a server that runs: give --base-url, too")
        return ""
    settings = sorted(given_settings(options) | given_settings(options, ServerConfig))
    if options.model_argument is not None or settings:
        name = "MODEL" if options.model_argument is not None else f"--{settings[0].replace('_', '-')}"
        raise ConfigError(f"--base-url is a server that runs, and {name} is for one that is started: leave one out")
    return server_address(options.base_url)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a number of 1 or more, got {text!r:.80}")
    return int(text)
