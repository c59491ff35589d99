"""The description of a model of which no file exists, for servers over scripted cores."""

from pyllm.checkpoint.types import Checkpoint, TokenizerFiles
from pyllm.families import llama
from pyllm.families.config import Config

SPEC = llama.read(
    Config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 600,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
        }
    )
)
FILES = TokenizerFiles(path="", chat_template=None, bos_token="", eos_token="", eos_token_ids=(), num_tokens=600)


def tiny_checkpoint(tokenizer: TokenizerFiles = FILES) -> Checkpoint:
    return Checkpoint(name="tiny", format="gguf", files=(), spec=SPEC, tensors=(), tokenizer=tokenizer, fingerprint="")
