import pytest

from pyllm.cli import make_parser
from pyllm.flags.command_parser import CommandParser


def parser_of_two() -> CommandParser:
    parser = CommandParser(prog="tool")
    parser.add_argument("--first", type=int, help="the first thing")
    parser.add_argument("--second", choices=["red", "green"], help="the second [thing]")
    return parser


def refusal(capsys: pytest.CaptureFixture[str], parser: CommandParser, *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_code:
        parser.read(arguments)
    assert exit_code.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def help_of(capsys: pytest.CaptureFixture[str], parser: CommandParser, argument: str) -> str:
    with pytest.raises(SystemExit) as exit_code:
        parser.read([argument])
    assert exit_code.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--frist", "1"], "tool: unknown flag --frist: did you mean --first?"),
        (["--fir=1"], "did you mean --first?"),
        (["-f"], "unknown flag -f"),
        (
            ["--frist=1", "--fir", "--third", "-5", "x", "--frist"],
            "tool: unknown flag --frist: did you mean --first?; unknown flag --fir: did you mean --first?; "
            "unknown flag --third (tool --help=all lists all flags)",
        ),
        (["--first"], "--first: expected one argument"),
        (["--second", "gren"], "there is no 'gren': did you mean green?"),
        (["word"], "unexpected argument 'word'"),
        (["--help=nothing"], "no help on 'nothing'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in refusal(capsys, parser_of_two(), *arguments)


def test_nested_commands_know_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="tool")
    nested = parser.add_subparsers(dest="command").add_parser("run")
    nested.add_argument("--number", type=int)
    assert parser.read(["run", "--number", "3"]).number == 3
    unknown = refusal(capsys, parser, "run", "--nubmer", "3")
    assert "tool run: unknown flag --nubmer: did you mean --number? (tool run --help=all lists" in unknown
    assert "did you mean run?" in refusal(capsys, parser, "rum")


def test_help_of_a_small_command_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, parser_of_two(), "--help")
    assert "the first thing" in text
    assert "[thing]" in text


def test_help_of_serve_goes_by_topic(capsys: pytest.CaptureFixture[str]) -> None:
    serve = make_parser("serve")
    short, everything = help_of(capsys, serve, "--help"), help_of(capsys, serve, "--help=all")
    assert "--max-model-len" in short
    assert "--watermark" not in short
    assert len(short.splitlines()) < 60 < len(everything.splitlines())
    assert "SchedulerConfig" in help_of(capsys, serve, "--help=listgroup")
    group = help_of(capsys, serve, "--help=SchedulerConfig")
    assert group == help_of(capsys, serve, "--help=scheduler")
    assert "--watermark" in group
    assert "--port" not in group
    flag = help_of(capsys, serve, "--help=max-num-seqs")
    assert flag.count("--") == 1
    assert help_of(capsys, serve, "--help=max_num_seqs").count("--max-num-seqs") == 1
    assert help_of(capsys, serve, "--help=queued").count("--max-num-queued") == 2
    assert "merge the adapter" in refusal(capsys, serve, "--help=lora-extra-vocab-size")


def test_a_flag_that_is_not_in_the_help_is_named_only_where_it_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    core = make_parser("core")
    assert "did you mean" not in refusal(capsys, core, "--port", "1")
    assert "did you mean --trust-remote-code?" in refusal(capsys, core, "--trust-remote-cod")


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("swap-space", "is --kv-offloading-size"),
        ("--swap-space", "is --kv-offloading-size"),
        ("swap_space", "is --kv-offloading-size"),
        ("no-trust-remote-code", "taken without an effect: code from"),
        ("--load-format", "dummy: weights are made up"),
        ("-tp", "--tensor-parallel-size"),
        ("-O", "--enforce-eager"),
        ("server-config", "The HTTP server"),
        ("model", "--dtype"),
        ("--model", "GGUF file"),
    ],
)
def test_help_is_found_by_a_flag_as_it_is_written(topic: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(help_of(capsys, make_parser("serve"), f"--help={topic}").split())
    assert text in shown
    assert ("--dtype" in shown) == (topic == "model")
