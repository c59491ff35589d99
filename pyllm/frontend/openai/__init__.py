"""OpenAI's completions, chat completions, embeddings and models, and vLLM's tokenization.

Each route decodes a body and formats the answer; `requests` and `answers` do the work between.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
