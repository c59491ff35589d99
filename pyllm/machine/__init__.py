"""Resources and limits of a machine, the needs of a model on it, and the problems found.

Reads Linux's files below an injected root; loads neither torch nor weights. Starts nothing and changes nothing.
"""
