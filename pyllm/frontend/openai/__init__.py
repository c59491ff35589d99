"""OpenAI's completions, chat completions, embeddings and models, and vLLM's tokenization.

Each route decodes a body and gives an answer its format; the way between them is `requests` and `answers`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
