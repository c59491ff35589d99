"""llama.cpp's own routes: `/infill`, which editors use to fill in code.

Its route uses the engine through `requests` and `answers`; `text` has the tokens of each model family.
"""
