from .token_masks import PATIENCE, GrammarRow, Grammars, Mask

__all__ = [
    "PATIENCE",
    "GrammarRow",
    "Grammars",
    "Mask",
]
