import re

import pytest

from pyllm.cli import make_parser
from pyllm.config.peer_flags import PEER_FLAGS, explain_peer_flag
from pyllm.config.vllm_flags import explain_flag


def test_what_the_sentences_name_exists() -> None:
    flags = {*make_parser("serve").flags(), *make_parser("chat").flags()}
    for flag, text in PEER_FLAGS.items():
        assert set(re.findall(r"--[a-z][a-z-]+", text)) - flags == set(), flag


@pytest.mark.parametrize("command", ["serve", "core", "chat", "check"])
def test_a_flag_that_has_a_sentence_is_none_of_ours(command: str) -> None:
    """Else the sentence would never be seen; `chat` has a few of them itself."""
    ours = {name for action in make_parser(command)._actions for name in action.option_strings}
    assert (set(PEER_FLAGS) & ours) - {"--system-prompt"} == set()


def test_vllm_has_none_of_them() -> None:
    assert [flag for flag in PEER_FLAGS if flag.startswith("--") and explain_flag(flag.removeprefix("--"))] == []
    assert explain_peer_flag("--port") == ""


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--mem-fraction-static", "--gpu-memory-utilization"),
        ("--model-path", "--model"),
        ("--tp-size", "--tensor-parallel-size"),
        ("--chunked-prefill-size", "--max-num-batched-tokens"),
        ("--schedule-policy", "--scheduling-policy"),
        ("--model-id", "--model"),
        ("--num-shard", "--tensor-parallel-size"),
        ("--max-input-tokens", "--max-model-len"),
        ("--max-total-tokens", "--max-model-len"),
        ("--no-mmproj", "only text"),
        ("--spec-draft-n-max", "--num-speculative-tokens"),
        ("--no-perf", "leave it out"),
        ("--escape", "prompt is taken as it is"),
    ],
)
def test_servers_of_other_projects_have_theirs_told(flag: str, named: str) -> None:
    assert named in make_parser("serve").explain([flag])
    assert "unknown flag" not in make_parser("serve").explain([flag])


def test_a_command_that_has_it_under_another_name_says_so() -> None:
    assert explain_peer_flag("-sys", make_parser("chat").flags()) == "use --system-prompt"
    assert explain_peer_flag("-p", make_parser("chat").flags()) == "use --quick"
    assert explain_peer_flag("--temp", make_parser("complete").flags()) == "use --temperature"
    for command in ("chat", "complete"):
        assert explain_peer_flag("--base-url", make_parser(command).flags()) == "use --url"
    assert explain_peer_flag("--base-url", make_parser("serve").flags()) == ""
    assert "override-generation-config" in explain_peer_flag("--temp", make_parser("serve").flags())
