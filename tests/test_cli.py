import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyllm.cli import COMMANDS, SHELLS, main, make_parser, read_options
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import option_names
from pyllm.config.server_settings import HeadlessConfig, ServerConfig
from pyllm.config.vllm_flags import VLLM_FLAGS
from tests.hub_server import HubServer
from tests.tiny_model import write_tiny_model


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyllm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == "0.1.0"
    text = run("serve", "--help=all").stdout
    for flag in (
        "--tensor-parallel-size",
        "--no-enable-prefix-caching",
        "--kv-offloading-size",
        "--kv-cache-memory-bytes",
        "--scheduling-policy",
        "--tenant-weights",
        "--scheduler-recording",
        "--enable-kv-cache-events",
        "--port",
    ):
        assert flag in text


# Ten wrong inputs for each command, and what the one line that they get has in it. The files are made by `wrong_files`.
WRONG = {
    "serve": [
        ("--max-num-seq 3", "did you mean --max-num-seqs?"),
        ("-m model.gguf", "-m: name the model without a flag"),
        ("-c 4096", "-c: use --max-model-len"),
        ("--ctx-size 4096", "--ctx-size: use --max-model-len"),
        ("-ngl 99", "-ngl: a model is on its device whole: --device"),
        ("--n-gpu-layers 99", "--n-gpu-layers: a model is on its device whole"),
        ("-t 4", "-t: --num-threads sets the threads"),
        ("-np 4", "-np: use --max-num-seqs"),
        ("--foo-bar", "unknown flag --foo-bar (pyllm serve --help=all"),
        ("--max-num-seqs -1", "max_num_seqs is -1: expected int >= 0"),
        ("--max-num-seqs many", "'many' as a whole number"),
        ("--dtype int4", "there is no 'int4'"),
        ("/nowhere/model.gguf", "/nowhere/model.gguf"),
        ("nowhere", "owner/repo:Q4_K_M"),
        ("--tensor-parallel-size 2", "9"),
        ("--max-model-len 9000", "8192"),
        ("--kv-cache-memory-bytes 999TiB", "or less"),
        ("--block-size 17", "power of two"),
        ("--scheduling-policy lifo", "fcfs, priority, shortest, fair"),
        ("--tenant-weights team-a", "team-a=3,team-b=1"),
        ("--watermark 1", "watermark is 1.0"),
        ("--watermark low", "a number such as 0.5, got 'low'"),
        ("--scheduler-recording /nowhere/recording", "/nowhere"),
        ("--distributed-executor-backend uni --tensor-parallel-size 3", "uni"),
        ("--served-model-name=", "served_model_name"),
        (f"--served-model-name chat {__file__}", "give the model first, or by --model"),
        ("--served-model-name chat owner/repo", "give the model first, or by --model"),
        ("/nowhere/model.gguf --served-model-name chat gpt", "/nowhere/model.gguf"),
        ("--lora-modules a=/b", "lora_modules: adapters are served with enable_lora alone; set it, too"),
        ("--enable-lora --lora-modules /b", "'/b' is neither NAME=PATH nor a JSON object"),
        ("--enable-lora --lora-modules a=/b a=/c", "'a' is the name of two models"),
        ("--enable-lora --max-loras 3 --max-cpu-loras 2", "max_cpu_loras is 2"),
        ("--enable-lora --lora-folder /nowhere", "lora_folder: there is no folder /nowhere"),
        ("--enable-lora --max-lora-rank 0", "max_lora_rank is 0"),
        ("--lora file.gguf", "use --enable-lora --lora-modules NAME=PATH"),
        ("--fully-sharded-loras", "each rank has its part of an adapter"),
        ("--skip-tokenizer-init --tokenizer-mode mistral --unknown", "; unknown flag --unknown"),
        ("--skip-tokenizer-init --tokenizer-mode mistral", "; --tokenizer-mode mistral: "),
        ("--tokenizer-mode mistral --load_format mistral", "; --load-format: there is no 'mistral'"),
        ("--numa-bind", "vLLM's and has no meaning here"),
        ("--hf-overrides [1]", "must be a JSON object"),
        ("--config /nowhere.yaml", "/nowhere.yaml"),
        ("--log-config-file /nowhere.json", "/nowhere.json"),
        ("--log-format xml", "there is no 'xml'"),
        ("--revision v1", "for models of the hub"),
        ("--kv-cache-memory-bytes huge", "64MiB"),
        ("one two", "there is no model one"),
        ("--host=", "host is '': expected str of length >= 1"),
        ("--config list.yaml", "list.yaml: '2' is no flag's value"),
        ("--config endless.yaml", "endless.yaml has a value that refers to itself"),
        ("--otlp-traces-endpoint http://", "must be the URL"),
        ("--enable-prefix-caching=1", "takes no value, got '1'"),
        ("--model= /nowhere", "/nowhere"),
        ("/nowhere --model b", "/nowhere and --model b both say which model: leave one out"),
        ("--config twice.yaml", "twice.yaml has port twice, in lines 1 and 3"),
    ],
    "core": [
        ("", "--bind"),
        ("--bind", "--bind: expected one argument"),
        ("--bind tcp://127.0.0.1:0", "--curve-keys"),
        ("--bind http://127.0.0.1", "ipc://PATH"),
        ("--bnid ipc:///x", "did you mean --bind?"),
        ("--port 8000", "unknown flag --port"),
        ("/nowhere --bind ipc:///x", "/nowhere"),
        ("--ready-timeout 0 --bind ipc:///x", "ready_timeout is 0.0"),
        ("--ready-timeout soon", "got 'soon'"),
        ("--block-size 3 --bind ipc:///x", "power of two"),
        ("--seed -1 --bind ipc:///x", "seed is -1"),
        ("--bind ipc://", "cannot bind to 'ipc://'"),
        ("--bind tcp://127.0.0.1 --insecure-tcp", "cannot bind to 'tcp://127.0.0.1'"),
        ("--bind tcp://127.0.0.1:99999 --insecure-tcp", "cannot bind to 'tcp://127.0.0.1:99999'"),
        ("a --model b --bind ipc:///x", "a and --model b both say which model"),
        ("--lora-modules a=/b --bind ipc:///x", "enable_lora"),
    ],
    "chat": [
        ("--url=", "the MODEL or --url is empty"),
        ("ftp://host", "begins with http:// or https://"),
        ("http://", "no address of a server"),
        ("http://host:99999", "no address of a server"),
        ("http://host?key=1", "no address of a server"),
        ("http://host --max-model-len 8k", "--max-model-len: settings of an engine do nothing for the server"),
        ("http://host --url http://other", "both say what answers"),
        ("/nowhere/model.gguf --model garbage", "both say what answers"),
        ("garbage --model-name x", "--model-name is for a server"),
        ("http://host --api-key \x01", "characters that no header can carry"),
        ("/nowhere/model.gguf", "/nowhere/model.gguf"),
        ("nowhere", "owner/repo:Q4_K_M"),
        ("garbage", "garbage"),
        ("--block-size 17", "power of two"),
        ("--block-sise 16", "did you mean --block-size?"),
        ("-c 4096", "-c: use --max-model-len"),
        ("--system-prompt", "expected one argument"),
        ("--lora-extra-vocab-size 5", "merge the adapter"),
        ("a b", "unexpected argument 'b'"),
    ],
    "complete": [
        ("ftp://host text", "begins with http:// or https://"),
        ("http:// text", "no address of a server"),
        ("/nowhere/model.gguf text", "/nowhere/model.gguf"),
        ("nowhere text", "owner/repo:Q4_K_M"),
        ("--max-tokens 0 text", "max_tokens must be at least 1"),
        ("--max-tokens many text", "'many'"),
        ("--temperature -1 text", "temperature must be from 0 to 100"),
        ("--top-p 2 text", "top_p must be above 0"),
        ("-n 0 text", "n must be from 1"),
        ("--seed 99999999999999999999 text", "a 64-bit integer"),
        ("--stop= text", "stop must not contain an empty string"),
        ("--json-schema /nowhere.json text", "cannot read --json-schema /nowhere.json"),
        ("--json-schema garbage text", "garbage is no JSON schema"),
        ("--json-schema empty text", "empty is no JSON schema"),
        ("--json-schema latin text", "latin is no JSON schema"),
        ("--max-token 3 text", "did you mean --max-tokens?"),
        ("http://host text --block-size 16", "--block-size: settings of an engine do nothing"),
        ("a b c", "unexpected argument 'c'"),
        ("a --max-tokens 3 b --seed 1 c", "unexpected argument 'c'"),
        ("a b --url http://host", "both say what answers"),
    ],
    "bench": [
        ("", "required: BENCHMARK"),
        ("srve", "did you mean serve?"),
        ("Latency", "did you mean latency?"),
        ("throughputs", "did you mean throughput?"),
        ("comparison", "did you mean compare?"),
        ("sweep", "choose from serve, throughput, latency, compare"),
        ("--plto", "required: BENCHMARK"),
        ("--help=nothing", "no help on 'nothing'"),
        ("--plto serve", "pyllm bench serve: unknown flag --plto: did you mean --plot?"),
        ("-v", "required: BENCHMARK"),
        ("http://127.0.0.1:1", "there is no 'http://127.0.0.1:1'"),
    ],
    "bench serve": [
        ("--num-prompts 0", "'0' is not a whole number above 0"),
        ("--request-rate fast", "'fast' is not a number above 0"),
        ("--burstiness nan", "'nan' is not a number above 0"),
        ("--seed -1", "'-1' is not a whole number from 0"),
        ("--top-p inf", "'inf' is not a number"),
        ("--top-k few", "'few' is not a whole number"),
        ("--backend tgi", "there is no 'tgi'"),
        ("--backend openai-chta", "did you mean openai-chat?"),
        ("--dataset-name sonnet", "there is no 'sonnet'"),
        ("--extra-body [1]", "is not a JSON object"),
        ("--random-range-ratio 1.5", "is not a number from 0 to below 1"),
        ("--num-propmts 9", "did you mean --num-prompts?"),
        ("--tokenizer gpt2", "the server counts the tokens"),
        ("--max-num-seqs 9", "pyllm bench serve: unknown flag --max-num-seqs"),
        ("everything", "unexpected argument 'everything'"),
        ("--base-url localhost:8000", "no address of a server"),
        ("--base-url http://host:99999", "no address of a server"),
        ("--dataset-name sharegpt", "sharegpt needs it"),
        ("--dataset-name sharegpt --dataset-path /nowhere.json", "/nowhere.json: No such file"),
        (f"--dataset-name sharegpt --dataset-path {__file__}", "is not JSON"),
        ("--goodput itl:5", "'itl:5' is not NAME:MS with a name of ttft, tpot, e2el"),
        ("--goodput ttft:fast", "'fast' is not a number of milliseconds from 0"),
        ("--percentile-metrics ttft,speed", "there is no 'speed'"),
        ("--metric-percentiles 101", "'101' is not a percentile from 0 to 100"),
        ("--header X", "'X' is not KEY=VALUE"),
        ("--find-knee", "give its targets"),
        ("--ramp-up-strategy linear", "needs --ramp-up-start-rps"),
        ("--ramp-up-strategy linear --request-rate 3", "leave out --request-rate"),
        ("--api-key two\nlines", "no header can carry"),
        ("--endpoint v1/completions", "is no path such as /v1/completions"),
    ],
    "bench compare": [
        ("", "required: A, B"),
        ("http://127.0.0.1:1", "required: B"),
        ("http://127.0.0.1:1 /nowhere", "an address and a file cannot be compared"),
        ("/nowhere /nowhere", "/nowhere: No such file"),
        ("garbage garbage", "garbage is no JSON of --save-result"),
        ("http://127.0.0.1:1 http://", "no address of a server"),
        ("a b c", "unexpected argument 'c'"),
        ("a b --rounds 0", "'0' is not a whole number above 0"),
        ("a b --round 2", "did you mean --rounds?"),
        ("a b --request-rate fast", "'fast' is not a number above 0"),
        ("http://127.0.0.1:1 http://127.0.0.1:1 --goodput ttft", "'ttft' is not NAME:MS"),
        ("http://127.0.0.1:1 http://127.0.0.1:1 --dataset-name sharegpt --dataset-path /no.json", "/no.json: No such"),
        ("a b --base-url http://127.0.0.1:1", "unknown flag --base-url"),
    ],
    **{
        f"bench {name}": [
            ("/nowhere/model.gguf", "/nowhere/model.gguf"),
            ("nowhere", "owner/repo:Q4_K_M"),
            ("one two", "unexpected argument 'two'"),
            ("--block-size 17", "power of two"),
            ("--tensor-parallel-size 2", "9"),
            ("--max-num-seqs -1", "max_num_seqs is -1"),
            ("--max-num-seq 3", "did you mean --max-num-seqs?"),
            ("--max-model-len 9000", "8192"),
            ("--lora-extra-vocab-size 5", "merge the adapter"),
            ("--seed -1", "seed is -1"),
            ("--hf-overrides [1]", "must be a JSON object"),
            ("--output xml", "there is no 'xml'"),
            ("--output-len 0", "'0' is not a whole number above 0"),
            ("--output-len 99999999", "'99999999' is not a whole number above 0, up to 1,000,000"),
            *more,
        ]
        for name, more in {
            "throughput": [
                ("--num-prompt 3", "did you mean --num-prompts?"),
                ("--dataset-name sharegpt --dataset-path /nowhere.json", "/nowhere.json: No such file"),
            ],
            "latency": [
                ("--input-len many", "'many' is not a whole number above 0"),
                ("--num-iter 3", "did you mean --num-iters?"),
            ],
        }.items()
    },
    "batch": [
        ("", "required: -i/--input-file, -o/--output-file"),
        ("-i requests", "required: -o/--output-file"),
        ("-i /nowhere -o out", "cannot read the requests in /nowhere"),
        ("-i empty -o out", "has no requests"),
        ("-i garbage -o out", "line 1: no JSON"),
        ("-i requests -o garbage", "garbage ends with a line that is no answer"),
        ("-i requests -o requests", "line 1 of requests is no answer"),
        ("-i requests -o /nowhere/out", "cannot write answers to /nowhere/out"),
        ("-i requests -o out /nowhere/model.gguf", "/nowhere/model.gguf"),
        ("-i requests -o out --base-url server", "server is no address of a server, as http://127.0.0.1:8000"),
        ("-i requests -o out --base-url http://a --seed 1", "--seed is for one that is started"),
        ("-i requests -o out model.gguf --base-url http://a", "MODEL is for one that is started"),
        ("-i requests -o out --api-key k", "give --base-url, too"),
        ("-i requests -o out --max-concurrency 0", "a number of 1 or more, got '0'"),
        ("-i requests -o out --input-fil x", "did you mean --input-file?"),
        ("-i requests -o out --port 8000", "unknown flag --port"),
        ("-i requests -o out --block-size 3", "power of two"),
    ],
    "check": [
        ("/nowhere/model.gguf", "there is no model at /nowhere/model.gguf"),
        ("nowhere", "owner/repo:Q4_K_M"),
        ("owner/repo:", "owner/repo:Q4_K_M"),
        ("one two", "unexpected argument 'two'"),
        ("--jsn", "did you mean --json?"),
        ("--json=1", "takes no value, got '1'"),
        ("--connections many", "a whole number, got 'many'"),
        ("--connections=-1", "a whole number, got '-1'"),
        ("--port 99999", "port is 99999"),
        ("--dtype int4", "there is no 'int4'"),
        ("--kv-cache-memory-bytes huge", "64MiB"),
        ("--config /nowhere.yaml", "/nowhere.yaml"),
        ("--lora-extra-vocab-size 5", "merge the adapter"),
        ("--help=things", "no help on 'things'"),
    ],
    **{
        name: [
            ("--jsn", "did you mean --json?"),
            ("--json=1", "takes no value, got '1'"),
            ("everything", "unexpected argument 'everything'"),
            ("--json everything", "unexpected argument"),
            ("-j", "unknown flag -j"),
            ("--sort size", "unknown flag --sort"),
            ("--help=colour", "no help on 'colour'"),
            ("-- x", "unexpected argument"),
            ("--json --yaml", "unknown flag --yaml"),
            ("--availabel", "did you mean --available?"),
            ("--all", "unknown flag --all"),
        ]
        for name in ("models", "list", "ls")
    },
    "run": [
        ("", "name the model, such as `pyllm run qwen3:4b`"),
        ("nowhere", "owner/repo:Q4_K_M"),
        ("nowhere Why is the sky blue?", "owner/repo:Q4_K_M"),
        ("/nowhere/model.gguf why", "/nowhere/model.gguf"),
        ("ftp://host why", "begins with http:// or https://"),
        ("http:// why", "no address of a server"),
        ("http://host why -q what", "--quick and the PROMPT are both a question"),
        ("http://host --max-model-len 8k why", "--max-model-len: settings of an engine do nothing"),
        ("nowhere --seed -1", "seed is -1"),
        ("nowhere --block-sise 16", "did you mean --block-size?"),
        ("nowhere --nowordwrap", "unknown flag --nowordwrap"),
        ("nowhere --model-name x", "--model-name is for a server"),
    ],
    "show": [
        ("nowhere", "owner/repo:Q4_K_M"),
        ("qwen3:4b", "`pyllm pull qwen3:4b` downloads it"),
        ("a/b", "a/b is not on this machine"),
        ("/nowhere/model.gguf", "/nowhere/model.gguf"),
        (".", "config.json"),
        ("a b", "unexpected argument 'b'"),
        ("x --url server", "server is no address of a server"),
        ("x --url http://", "no address of a server"),
        ("x --templat", "did you mean --template?"),
        ("x --license", "unknown flag --license"),
        ("x --url", "expected one argument"),
    ],
    "ps": [
        ("smol", "unexpected argument 'smol'"),
        ("--url server", "server is no address of a server"),
        ("--url http://", "no address of a server"),
        ("--url http://host:99999", "no address of a server"),
        ("--url http://host?key=1", "no address of a server"),
        ("--url", "expected one argument"),
        ("--api-key \x01", "characters that no header can carry"),
        ("--cacert /nowhere.pem", "/nowhere.pem"),
        ("--ulr http://host", "did you mean --url?"),
        ("-a", "unknown flag -a"),
    ],
    "stop": [
        ("", "required: NAME"),
        ("a b", "unexpected argument 'b'"),
        ("a --url server", "server is no address of a server"),
        ("a --url http://", "no address of a server"),
        ("a --url http://host:99999", "no address of a server"),
        ("a --url", "expected one argument"),
        ("a --api-key \x01", "characters that no header can carry"),
        ("a --insecure --cacert x", "leave one out"),
        ("a --all", "unknown flag --all"),
        ("--help=names", "no help on 'names'"),
    ],
    "search": [
        ("", "required: WORD"),
        ("qwen --limit many", "many"),
        ("qwen --limit 0", "'0' is not a whole number above 0"),
        ("qwen --limit=-1", "'-1' is not a whole number above 0"),
        ("qwen --format onnx", "there is no 'onnx'"),
        ("qwen --fromat gguf", "did you mean --format?"),
        ("qwen --sort likes", "unknown flag --sort"),
        ("qwen --json=1", "takes no value, got '1'"),
        ("qwen -n 3", "unknown flag -n"),
        ("--help=words", "no help on 'words'"),
    ],
    "pull": [
        ("", "required: NAME"),
        ("/nowhere", "nothing to download"),
        ("nowhere", "owner/repo"),
        ("a/b c/d", "unexpected argument 'c/d'"),
        ("a/b --revision v1", "unknown flag --revision"),
        ("a/b:", "owner/repo"),
        ("a/../b", "owner/repo"),
        ("a/b/c", "owner/repo"),
        ("a/b@", "owner/repo"),
        (". --quiet", "unknown flag --quiet"),
        (".", "nothing to download"),
    ],
    "rm": [
        ("", "required: NAME"),
        ("nowhere", "`pyllm models` lists"),
        ("a/b", "not in the cache"),
        ("a/b@v1", "not in the cache"),
        ("a/b c/d", "unexpected argument 'c/d'"),
        ("--all", "required: NAME"),
        ("a/b --force", "unknown flag --force"),
        ("a/b:", "owner/repo"),
        ("a//b", "owner/repo"),
        ("a/../../b", "owner/repo"),
    ],
    "keygen": [
        ("", "required: FOLDER"),
        ("keys other", "unexpected argument 'other'"),
        ("--folder keys", "unknown flag --folder"),
        ("/proc/keys", "cannot write keys to /proc/keys"),
        (f"{__file__}", "cannot write keys"),
        (f"{__file__}/keys", "cannot write keys"),
        ("keys --force", "unknown flag --force"),
        ("-f keys", "unknown flag -f"),
        ("--help=folders", "no help on 'folders'"),
        ("taken", "holds keys already"),
    ],
    "apikey": [
        ("", "required: NAME"),
        ("a b", "unexpected argument 'b'"),
        ("a --limit 3", "unknown flag --limit"),
        ("a --nmae", "unknown flag --nmae"),
        (f"{'a' * 300}", "cannot be a key's name"),
        ("\x01", "cannot be a key's name"),
        ("a\tb", "cannot be a key's name"),
        ("\x7f", "cannot be a key's name"),
        ("-n a", "unknown flag -n"),
        ("--help=names", "no help on 'names'"),
    ],
    "replay": [
        ("", "required: FILE"),
        ("/nowhere/recording", "/nowhere/recording"),
        (".", "cannot read"),
        ("a b", "unexpected argument 'b'"),
        ("garbage", "garbage"),
        ("empty", "empty"),
        ("--file a", "unknown flag --file"),
        ("a --jsn", "unknown flag --jsn"),
        (f"{__file__}", "test_cli.py"),
        ("--help=things", "no help on 'things'"),
    ],
    "": [
        ("srve", "did you mean serve?"),
        ("sevre --port 1", "did you mean serve?"),
        ("", "name a command"),
        ("-v", "unknown flag -v"),
        ("--model /nowhere", "/nowhere"),
        ("--print-completion fish", "there is no 'fish'"),
        ("--print-completion", "expected one argument"),
        ("model.gguf", "there is no command 'model.gguf'"),
        ("Serve", "did you mean serve?"),
        ("--help=something", "no help on 'something'"),
        ("--verison", "did you mean"),
        ("info llama3", "`pyllm show MODEL`"),
        ("kill", "SIGTERM"),
        ("create mine -f Modelfile", "--override-generation-config"),
    ],
}


@pytest.fixture
def wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes('{"title": "M\u00fcller"}'.encode("latin-1"))
    (tmp_path / "list.yaml").write_text("port: [1, 2]\n")
    (tmp_path / "endless.yaml").write_text("hf-overrides: &all {all: *all}\n")
    (tmp_path / "twice.yaml").write_text("port: 1\nseed: 2\nport: 3\n")
    (tmp_path / "garbage").write_bytes(b"\x00garbage" * 99)
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    (tmp_path / "requests").write_text(json.dumps(request) + "\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/server.key_secret").touch()


@pytest.mark.usefixtures("wrong_files")
@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [(command, arguments, text) for command, cases in WRONG.items() for arguments, text in cases],
)
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    command: str, arguments: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), *(word for word in arguments.split(" ") if word)]
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else -1
    error = capsys.readouterr().err
    assert code == 2
    assert text in error
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith("pyllm")


def test_every_command_has_ten_wrong_inputs() -> None:
    nested = {f"{name} {own}" for name in COMMANDS for own in make_parser(name).commands()}
    assert nested
    assert {*COMMANDS, *nested} - set(WRONG) == set()
    assert min(map(len, WRONG.values())) >= 10


@pytest.mark.parametrize("name", COMMANDS)
def test_no_flag_of_a_commands_own_is_taken_for_a_setting(name: str) -> None:
    """One that is stored under a setting's name would be read as that setting."""
    names = {*option_names(EngineConfig), *option_names(ServerConfig), *option_names(HeadlessConfig)}
    parser = make_parser(name)
    for each in (parser, *parser.commands().values()):
        groups = {group.title: group._group_actions for group in each._action_groups}
        settings = [action for title, group in groups.items() if is_of_settings(title) for action in group]
        own = [action for title, group in groups.items() if not is_of_settings(title) for action in group]
        if settings:
            assert {action.dest for action in own} & names == set()


def is_of_settings(title: str | None) -> bool:
    return title is not None and title.endswith(("Config", "Settings"))


@pytest.mark.parametrize("name", ["core", "chat", "complete", "batch", "check", "bench throughput", "bench latency"])
def test_commands_with_an_engine_take_vllms_flags_as_serve_does(name: str) -> None:
    command, *nested = name.split()
    parser = make_parser(command)
    for each in nested:
        parser = parser.commands()[each]
    flags = [flag.flag for flag in VLLM_FLAGS.values() if flag.meaning != "ours"]
    assert len(flags) > 40
    assert set(flags) - set(parser.flags()) == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--help"], COMMANDS), (["bench", "--help"], ["serve", "compare"]), (["bench", "serve", "--help"], ["--plot"])],
)
def test_help_is_light(arguments: list[str], said: Iterable[str]) -> None:
    """Neither the engine nor a web framework nor plots are loaded to say what there is."""
    code = f"import sys\nfrom pyllm.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in said)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    heavy = {"torch", "transformers", "uvicorn", "zmq", "numpy", "huggingface_hub", "shtab", "plotext"}
    assert loaded & heavy == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--max-num-seqs", "--scheduler-recording", "--json"))
    assert all(word in script for word in (*make_parser("bench").commands(), "--find-knee", "--num-iters-warmup"))


def test_a_reader_who_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m pyllm --print-completion bash | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_keygen(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keygen", f"{tmp_path}/keys"]) == 0
    assert "server.key_secret" in capsys.readouterr().out
    assert main(["keygen", f"{tmp_path}/keys"]) == 2


def test_standard_files_that_were_closed_become_dev_null() -> None:
    """Otherwise the listening socket gets a number that a child's stdin or stderr takes."""
    script = """if True:
        import os
        from pyllm.cli import COMMANDS, SHELLS, main
        os.close(0)
        os.close(2)
        try:
            main(["--version"])
        except SystemExit:
            print([os.path.samefile("/dev/null", f"/proc/self/fd/{number}") for number in (0, 2)])
    """
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.endswith("[True, True]\n")


def test_models_are_pulled_listed_and_removed(tmp_path: Path) -> None:
    with HubServer() as server:
        server.add("me/tiny", Path(write_tiny_model(tmp_path / "tiny")))
        server.add("me/strange", Path(write_tiny_model(tmp_path / "strange", architectures=["StrangeForCausalLM"])))
        online = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
        pulled = run("pull", "me/tiny", **online)
        assert "downloading model.safetensors of me/tiny" in pulled.stderr
        assert run("pull", "me/strange", **online).returncode == 0
        folder = tmp_path / "models"
        # What comes after the model has been read is refused.
        elsewhere = ("--download-dir", str(folder), "--revision", "main", "--block-size", "17")
        assert "power of two" in run("serve", "me/tiny", *elsewhere, **online).stderr
        assert [path.name for path in folder.glob("models--*")] == ["models--me--tiny"]
    offline = online | {"HF_HUB_OFFLINE": "1"}
    assert run("pull", "me/tiny", **offline).stdout == pulled.stdout
    rows = json.loads(run("models", "--json", **offline).stdout)
    assert [(row["name"], row["runs"]) for row in rows] == [
        ("(embedded)", True),
        ("me/strange", None),
        ("me/tiny", True),
    ]
    assert {type(row["fits"]) for row in rows} == {bool}
    assert rows[1]["reason"] == "transformers is asked when it is served"
    assert rows[2]["path"] == pulled.stdout.strip()
    table = run("models", **offline).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "(embedded)", "me/strange", "me/tiny"]
    assert "freed" in run("rm", "me/tiny", **offline).stdout
    again = run("rm", "me/tiny", **offline)
    assert (again.returncode, "not in the cache" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", ""], "the MODEL is empty"),
        (["complete", "--chat", ""], "the prompt is empty"),
        (["keygen", ""], "needs a folder"),
        (["apikey", " "], "cannot be a key's name"),
    ],
)
def test_what_an_unset_variable_of_a_shell_gives_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else -1
    assert (code, text in capsys.readouterr().err) == (2, True)


def test_a_file_of_flags_and_the_command_line_have_what_is_required_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text("max-model-len: 64\noutput-file: out.jsonl\n")
    options = read_options("batch", ["--config", str(file), "-i", "in.jsonl"])
    assert (options.max_model_len, options.input_file, options.output_file) == (64, Path("in.jsonl"), Path("out.jsonl"))
    with pytest.raises(SystemExit):
        read_options("batch", ["--config", str(file)])
    assert capsys.readouterr().err == "pyllm batch: the following arguments are required: -i/--input-file\n"
