"""State that all API processes of a server share: limits, queue, records of answers, stored responses, totals.

Knows no HTTP and no engine. A single API process keeps the state itself; several share a separate process.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
