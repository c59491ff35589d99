"""Reports in each of their forms have what was found."""

import io

import msgspec
import pytest
from rich.console import Console

from pyllm.check.findings import Finding
from pyllm.check.report import Report, as_json, as_text, print_tables
from tests.machine.made_machines import card, limits, needs, processor, software

FINDINGS = [Finding("error", "it is [bold]bad", "Do this."), Finding("warning", "it says so itself", "")]
REPORT = Report(
    can_run=False,
    processor=processor(quota=2.0),
    limits=limits(swap_bytes=10**9, swap_used_bytes=10**8, processes=9),
    software=software(cards=(card(), card(name="Old", capability="7.0", runs_kernels=False))),
    model=needs(ranks=2),
    findings=FINDINGS,
)


def on_terminal(report: Report, width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    print_tables(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("text", [as_text(REPORT), on_terminal(REPORT, 200)], ids=["plain", "terminal"])
def test_people_read_all_of_it(text: str) -> None:
    for part in (
        *("Made Up 9000", "4 usable of 4, time for 2 of them", "AVX-512 VNNI"),
        *("64.42 GB available of 68.72 GB", "1.00 GB, 100 MB in use", "20000, can be raised to unlimited"),
        *("torch", "2.11.0", "Made Up H, 85.90 GB, compute capability 9.0: Triton kernels, float16, bfloat16, fp8"),
        *("too old for Triton", "on 2 ranks on cpu in bfloat16", "8 sequences at once, 128 with all the room"),
        *("1 sequence at once", "error: it is [bold]bad", "  Do this.", "warning: it says so itself"),
    ):
        assert part in text
    assert text.strip().endswith("it cannot run here so: 1 error")


def test_a_narrow_terminal_loses_nothing() -> None:
    lines = on_terminal(REPORT, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "capability" in "".join(lines)


def test_json_is_the_whole_report() -> None:
    assert msgspec.json.decode(as_json(REPORT), type=Report) == REPORT


def test_without_a_model_and_without_problems() -> None:
    report = msgspec.structs.replace(REPORT, can_run=True, model=None, findings=[])
    text = as_text(report)
    assert "Model" not in text
    assert text.endswith("\n\npyllm can run here")
    assert "pyllm can run here" in on_terminal(report, 100)
