"""Finds, downloads and describes models: spec, tokenizer, template, defaults and tensors of a folder or GGUF file.

Does not load weights (`workers/loaders` does) and knows no process.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
