"""Plain words in comments and docstrings: `make lint` runs `python -m tests.words`.

Documentation opens with a noun phrase or a verb: "An event for subscribers.", never "What subscribers are told."
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ("kernels/**/*.rs", "rust/**/*.rs", "pyllm/**/*.py", "kernels/**/*.py", "benchmarks/**/*.py")
# Openings of a clause in place of a noun, or of the rest of a sentence without its noun.
OPENERS = "What|Whatever|Which|Who|Whoever|Whom|Whose|That|Those|Where|When|Why|How|However|As|By|Of"
# Phrases that a stranger does not understand at first reading, each with a plain one.
PHRASES = {
    r"c[ao]mes? to nothing": "void",
    r"(tells?|told|heard) of": "reports",
    r"what (runs|waits|lives|goes on)": "running sequences",
    r"(nobody|somebody|who) is owed": "reserved",
    r"be(comes?|came) of": "the result of",
    r"(let go of|taken back)": "freed",
    r"for want of": "for lack of",
    "lest": "so that ... not",
}
OPENING = re.compile(rf"(?:\*[^*]+\*|\W)*({OPENERS})\b")
RUST_COMMENT = re.compile(r"(?:^|\s)(//[/!]?) ?(.*)")
Comment = tuple[int, str, bool]  # line, text, whether it is documentation


def rust_comments(source: str) -> list[Comment]:
    """Blocks of comments; a line of the same kind continues a block."""
    blocks: list[Comment] = []
    kind = ""
    for number, line in enumerate(source.splitlines(), 1):
        found = RUST_COMMENT.search(line)
        if found and found[1] == kind and line.lstrip().startswith(kind):
            first, text, is_documentation = blocks.pop()
            blocks.append((first, f"{text} {found[2]}", is_documentation))
        elif found:
            blocks.append((number, found[2], found[1] != "//"))
        kind = found[1] if found else ""
    return blocks


def python_comments(source: str) -> Iterator[Comment]:
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def faults(comments: Iterable[Comment]) -> Iterator[str]:
    """Each fault, after its line number."""
    for line, text, is_documentation in comments:
        if is_documentation and (opening := OPENING.match(text)):
            yield f"{line}: opens with {opening[1]!r}: begin with a noun phrase or a verb"
        for phrase, plain in PHRASES.items():
            if found := re.search(rf"\b{phrase}\b", " ".join(text.split()), re.IGNORECASE):
                yield f"{line}: says {found[0]!r}: use plain words, such as {plain!r}"


def main(root: Path = ROOT) -> int:
    found = []
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        read = rust_comments if path.suffix == ".rs" else python_comments
        found += [f"{path.relative_to(root)}:{fault}" for fault in faults(read(path.read_text()))]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
