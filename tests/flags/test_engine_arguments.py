"""What a command line says before anything is loaded."""

import io

import pytest

from pyllm import __version__
from pyllm.config.engine_settings import EngineConfig
from pyllm.config.option_reading import engine_config
from pyllm.flags.engine_arguments import print_notices, say_start


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_hears_at_once_what_starts() -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        say_start(EngineConfig(), stream)
        say_start(engine_config({"model": "owner/repo"}), stream)
    assert terminal.getvalue().splitlines() == [
        f"pyllm {__version__} starts the embedded model ...",
        f"pyllm {__version__} starts owner/repo ...",
    ]
    assert log.getvalue() == ""


def test_a_notice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_notices(["--a: b", "--c: d", "--a: b"])
    assert capsys.readouterr().err == "note: --a: b\nnote: --c: d\n"
