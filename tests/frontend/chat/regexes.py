"""Regexes and texts in which characters that JSON escapes are likely, and what llguidance makes of a grammar."""

from hypothesis import reject
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

BYTES = LLTokenizer("byte")
ALPHABET = 'ab"\\\n\t\x00\x1f\x7f/-ü'
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=5)
ATOMS = st.sampled_from(
    [
        *("a", "b", r"\"", '"', r"\\", r"\n", r"\t", r"\x1f", r"\u0022", "ü", r"\/", r"\-", "."),
        *(r"\D", r"\W", r"\S", r"[a\"]", r"[^a]", r'[^"\\]', r"[\x00-\x1f]", r"[ -~]", r"[\n\t]", r"[^\n]", r"[\\\-a]"),
        *(r"[]a]", r"[^\S]", r"[\t-\n]", r"[a-]", r"(?s:.)", r"(?s:.|\n)"),
    ]
)
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text may come, and end. An example on which llguidance itself panics is none."""
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    if matcher.get_error().startswith("panic"):  # as on (\D|\W)|\D
        reject()
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
