"""Compiles one grammar with llguidance, within limits of work. Knows no time, no memory and no other grammar."""

import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pyllm.errors import RequestError
from pyllm.workers.grammar.schema_limits import check_schemas

# llguidance counts work, not time, so whether a grammar is refused depends on the grammar alone. Each limit is as low
# as real grammars allow: 100,000 of fuel compile an enumeration of 5,000 texts, 300,000 a step allow three patterns in
# one string, and 5,000 items in a row are 1,250 optional properties of one object. Grammars that are not JSON schemas
# may be ambiguous, and then a step's work grows with the square of a row's items. On a core of 2024 a mask takes 41 ms
# at most, except for one that ends in an error: 160 ms, where a repetition forces 100 KB at once.
_SCHEMA_ITEMS, _OTHER_ITEMS = 5_000, 500

# The lines of the grammar that follow the message of an error.
_SOURCE_LINES = re.compile(r"\n +\d+ \| .*", re.DOTALL)


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Check and compile one grammar. This may need a deep stack, and takes minutes for some grammars.

    Raises:
        RequestError: it is wrong, or too large.
    """
    return make_matcher(tokenizer, text, check_schemas(text))


def make_matcher(tokenizer: LLTokenizer, text: str, is_schema: bool) -> LLMatcher:
    """Compile a text that `check_schemas` has accepted; `is_schema` is its result.

    Raises:
        RequestError: it is wrong, or too large.
    """
    limits = LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=300_000,
        step_max_items=20_000,
        max_items_in_row=_SCHEMA_ITEMS if is_schema else _OTHER_ITEMS,
        max_grammar_size=50_000,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError(f"the grammar does not compile: {error_text(matcher)}")
    return matcher


def error_text(matcher: LLMatcher) -> str:
    """llguidance's error of a failed matcher, without internal notes and without the lines of the grammar.

    The grammar need not be the user's own text.
    """
    text = _SOURCE_LINES.sub("", matcher.get_error().replace("<non-verbose/>", ""))
    return f"{text.strip():.500}"
