"""The report of `pyllm check`: what a model needs on a machine, and the problems found, each with its fix.

Works from facts that others have read; loads neither torch nor weights. Starts nothing and changes nothing.
"""
