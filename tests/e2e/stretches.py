"""Prompts with a clear answer: stretches of the licence text, as the embedded model's token ids.

Stretches from the same place share a prefix, so that the prefix cache has something to find. They were chosen so that
of the 64 greedy tokens that follow, each wins clearly: `test_oracle.py` checks by how much.
"""

from pathlib import Path

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.frontend.text.tokenizer import Tokenizer

TEXT = Path(__file__).parents[2] / "LICENSE"
# (length, first token) of each prompt
STRETCHES = [
    (5, 442),
    (5, 1989),
    (11, 1100),
    (16, 0),
    (16, 1095),
    (33, 218),
    (48, 1296),
    (64, 0),
    (64, 1505),
    (100, 0),
    (100, 211),
    (150, 1854),
    (200, 1005),
    (256, 780),
    (300, 573),
    (400, 181),
    (400, 1448),
    (500, 0),
    (500, 855),
    (600, 644),
]


def stretches() -> list[list[int]]:
    """The token ids of each prompt."""
    tokens = Tokenizer(read_checkpoint("").tokenizer).encode(TEXT.read_text())
    return [tokens[first : first + length] for length, first in STRETCHES]
