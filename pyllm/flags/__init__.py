"""Settings as flags and keywords, in pyllm's names and in vLLM's; the parser of a command line.

Knows neither commands nor the effects of settings.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
