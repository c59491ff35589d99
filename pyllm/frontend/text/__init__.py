"""Text to token ids and back: tokenizer, chat templates, prompts, detokenizer, stop strings, constraints.

Knows no API and no HTTP; Python programs use it as the server does.
"""
