"""Settings as flags and keywords, in pyllm's names and in vLLM's; the parser of a command line.

Knows neither commands nor the effects of settings.
"""
