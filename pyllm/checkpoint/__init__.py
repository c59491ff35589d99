"""What a model's folder or file says: architecture, tokenizer, templates, and where its tensors are.

Reads no tensor's values (`workers/loaders` does) and knows no process.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
