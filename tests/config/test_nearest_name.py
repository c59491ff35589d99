import pytest

from pyllm.cli import make_parser
from pyllm.config.nearest_name import nearest_name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("--max-num-seq", "--max-num-seqs"),
        ("--max_num_seqs", "--max-num-seqs"),
        ("--maxnumseqs", "--max-num-seqs"),
        ("--prot", "--port"),
        ("--kv-cache-memory", "--kv-cache-memory-bytes"),
        ("--tensor-paralel-size", "--tensor-parallel-size"),
        ("--ctx-size", ""),
        ("--max-tokens", ""),
        ("--sleep", ""),
        ("--cert", ""),
        ("--tags", ""),
        ("--foo-bar", ""),
        ("--disable-log-everything", ""),
        ("--batch-wait", ""),
        ("--", ""),
        ("", ""),
    ],
)
def test_only_a_name_that_is_close_in_each_word_is_meant(name: str, near: str) -> None:
    assert nearest_name(name, make_parser("serve").flags(is_shown=True)) == near


def test_one_word_too_few_is_no_other_word() -> None:
    assert nearest_name("--disable-log-stats", ["--disable-log-requests"]) == ""
    assert nearest_name("max_modellen", ["max_model_len", "max_num_seqs"]) == "max_model_len"
    assert nearest_name("Serve", ["serve", "core"]) == "serve"
    assert nearest_name("tags", ["task"]) == nearest_name("deploy", ["replay"]) == ""
    assert nearest_name("--cert", ["--convert"]) == nearest_name("--sleep", ["--seed"]) == ""
    assert nearest_name("--max-tokens", ["--max-tokens-per-minute"]) == ""
    assert nearest_name("temprature", ["temperature", "template"]) == "temperature"
    assert nearest_name("--temp", ["--temperature"]) == "--temperature"
