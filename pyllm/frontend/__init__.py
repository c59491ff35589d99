"""The OpenAI-compatible server: texts in, texts out, for every API it speaks.

Asks the engine through `client`. Knows no scheduler and no tensor.
"""
