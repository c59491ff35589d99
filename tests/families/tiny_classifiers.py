"""A tiny random classifier of each kind, written by transformers."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from pyllm_kernels.tensors import Array
from transformers import PreTrainedModel

from tests.families.tiny_encoders import MODERN_BERT, ROBERTA, SIZES, with_large_numbers
from tests.tiny_model import write_tokenizer

_JOINS_AS_BERT = {"type": "BertProcessing", "cls": ["<|start|>", 256], "sep": ["<|end|>", 257]}
_ROBERTA = ROBERTA | {"type_vocab_size": 1}
_TEXT = {"num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 8, "tie_word_embeddings": True}
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-classifier": ("Bert", {"num_labels": 1}),
    "roberta-classifier": ("Roberta", _ROBERTA | {"num_labels": 2}),
    "xlm-roberta-classifier": ("XLMRoberta", _ROBERTA | {"num_labels": 1}),
    "modernbert-classifier": ("ModernBert", MODERN_BERT | {"num_labels": 3, "classifier_pooling": "mean"}),
    "modernbert-reranker": (
        "ModernBert",
        MODERN_BERT | {"num_labels": 1, "classifier_bias": True, "norm_bias": True},
    ),
    "mpnet-classifier": ("MPNet", ROBERTA | {"num_labels": 2}),
    "distilbert-classifier": ("DistilBert", {"hidden_dim": 48, "num_labels": 2}),
    "electra-reranker": ("Electra", {"embedding_size": 32, "num_labels": 1}),
    "gte-reranker": ("Gte", {"num_labels": 1, "type_vocab_size": 1}),
    "qwen3-classifier": ("Qwen3", _TEXT | {"num_labels": 1}),
    "llama-classifier": ("Llama", _TEXT | {"num_labels": 4}),
}
"""Transformers' class without `ForSequenceClassification`, and what its config.json has beside the sizes."""
RERANKER = "qwen3-reranker"
"""A text model that is asked for yes or no, which llama.cpp's converter makes a classifier."""
ANSWER_IDS = (260, 258)  # yes and no


@functools.cache
def classifier(name: str) -> PreTrainedModel:
    """The model, in float32; its numbers are large enough that each changes the result."""
    # Its template has some 400 bytes.
    kind, fields = ("Qwen3", _TEXT | {"max_position_embeddings": 1024}) if name == RERANKER else CLASSIFIERS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{kind}Config")(**SIZES | fields)
    head = "CausalLM" if name == RERANKER else "SequenceClassification"
    return with_large_numbers(getattr(transformers, f"{kind}For{head}")(config))


@torch.inference_mode()
def expected(name: str, prompt: Sequence[int], types: Sequence[int] = ()) -> Array:
    """The numbers of the classes by transformers, float32 [classes]; `types` are those of the tokens, by default 0."""
    given = {"token_type_ids": torch.tensor([types])} if types else {}
    logits: Array = classifier(name)(torch.tensor([prompt]), **given).logits[0].numpy()
    if name == RERANKER:
        numbers: Array = logits[-1, list(ANSWER_IDS)]
        return numbers
    return logits


def write_tiny_classifier(folder: Path, name: str, **fields: Any) -> str:
    """Write the model and a byte-level tokenizer, with more `fields` in config.json; gives the folder as a string."""
    classifier(name).save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text()) | fields
    if name == RERANKER:
        (folder / "README.md").write_text("# Qwen3-Reranker\n")  # what the converter looks for
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, merges=["n o", "y e", "ye s", "a n"])
    if name == "bert-classifier":
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": _JOINS_AS_BERT}))
    return str(folder)
