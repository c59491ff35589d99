from .gguf_tokenizer import end_tokens, special_ids, tokenizer_json

__all__ = ["end_tokens", "special_ids", "tokenizer_json"]
