"""Mistral's own routes: `/v1/fim/completions`, which fills in code and answers as a chat.

Its chunks are those of `openai`, whose chat is Mistral's, too; `text` has the tokens of each model family.
"""
