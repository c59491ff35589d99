"""One grammar as llguidance compiles it, within limits of work. Knows no time, no memory and no other grammar."""

import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pyllm.errors import RequestError
from pyllm.workers.grammar.schema_limits import check_schemas

# llguidance counts work, not time, so whether a grammar is refused depends on itself alone. Each limit is as low as
# grammars that are used allow: 100,000 of fuel compile an enumeration of 5,000 texts, 300,000 a step let three patterns
# meet in one string, and 5,000 items in a row are 1,250 optional properties of one object. Grammars that are not JSON
# schemas may be ambiguous, where a step's work grows with the square of a row's items. On a core of 2024 a mask then
# takes 41 ms at most, but for one that ends in an error: 160 ms, where a repetition forces 100 KB at once.
_SCHEMA_ITEMS, _OTHER_ITEMS = 5_000, 500

# The lines of a grammar that follow what is wrong with it.
_SOURCE_LINES = re.compile(r"\n +\d+ \| .*", re.DOTALL)


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Check and compile one grammar. It may need a deep stack, and some grammars take minutes.

    Raises:
        RequestError: it is wrong, or too large.
    """
    return make_matcher(tokenizer, text, check_schemas(text))


def make_matcher(tokenizer: LLTokenizer, text: str, is_schema: bool) -> LLMatcher:
    """The same for a text that `check_schemas` has let through, and what it said of it.

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
    """What llguidance says of a matcher that failed, without what is not meant for users, and without the grammar.

    That need not be the user's own text.
    """
    text = _SOURCE_LINES.sub("", matcher.get_error().replace("<non-verbose/>", ""))
    return f"{text.strip():.500}"
