import pytest

from pyllm.config.option_texts import parse_count, parse_list, parse_size
from pyllm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("64Mi", 64 << 20), ("64M", 64 << 20), ("64m", 64_000_000), ("1.5GiB", 3 << 29), ("17", 17)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "64 MB", "-1", "64Mib", "1e9", "nan"])
def test_bad_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="64MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("8192", 8192), ("-1", -1), ("8k", 8000), ("25.6k", 25600), ("8K", 8192), ("1m", 10**6), ("2G", 2 << 30)],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "8.5", "8.5K", "8 k", "1e3", "nan", "-8k", "8kB"])
def test_bad_counts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="8k"):
        parse_count(text)


@pytest.mark.parametrize(("text", "words"), [("a, b", ("a", "b")), ('["a", "b"]', ("a", "b")), ("*", ("*",)), ("", ())])
def test_lists(text: str, words: tuple[str, ...]) -> None:
    assert parse_list("middleware", text) == words


@pytest.mark.parametrize("text", ["[1]", "[a]"])
def test_bad_lists_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="middleware"):
        parse_list("middleware", text)
