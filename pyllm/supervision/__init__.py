"""Child processes: started, watched, replaced when they die, and ended in order; what is known of each crash.

Knows no role of a process but that workers are forked, no request but its id, and no model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
