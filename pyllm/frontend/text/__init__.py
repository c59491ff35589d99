"""Text to token ids and back: tokenizer, chat templates, prompts, detokenizer, stop strings, constraints.

Knows no API and no HTTP; Python programs use it as the server does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
