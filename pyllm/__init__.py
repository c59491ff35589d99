"""pyllm: an inference engine for large language models, over HTTP, from Python and over ZeroMQ.

The names in `__init__.pyi` are loaded at their first use: `import pyllm` loads neither torch nor a web framework.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
