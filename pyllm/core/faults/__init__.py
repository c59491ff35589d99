"""What a core does when workers die, hang or fail: recovery, quarantine, crash reports.

Knows no socket and no text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
