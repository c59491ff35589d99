from .gguf_tokenizer import end_tokens, tokenizer_json

__all__ = ["end_tokens", "tokenizer_json"]
