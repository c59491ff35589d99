"""Writes the fixtures in `gguf/`: each tiny family as llama.cpp's own converter writes it, and llama.cpp's own answers.

These are logits, or the embeddings of encoders.

    python -m tests.families.record_gguf LLAMA_CPP_SOURCE LLAMA_SERVER [FAMILY ...]

Without names, all are written anew. `make peers` builds both. A writer of our own would share its mistakes with our
reader.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.tiny_classifiers import RERANKER, expected, write_tiny_classifier
from tests.families.tiny_encoders import ENCODERS, PUBLISHED, write_tiny_encoder
from tests.families.tiny_families import PROMPT, write_tiny_family

FOLDER = Path(__file__).with_name("gguf")
LOGPROBS = FOLDER / "llama_cpp_logprobs.npz"
EMBEDDINGS = FOLDER / "llama_cpp_embeddings.npz"
LENGTHS = (5, 40, 90)  # of the prompt's beginnings after which llama.cpp gave its log-probabilities
FAMILIES = (
    "llama",
    "llama-3.1",
    "llama-linear",
    "ministral-3",
    "qwen2",
    "qwen2-yarn",
    "qwen3",
    "qwen2.5-vl",
    "qwen3-vl",
    "qwen3-vl-moe",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3-longrope",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "granite-4",
    "glm4",
    "cohere2",
    "mixtral-whole",
    "qwen3-moe",
    "olmoe",
    "granite-moe",
    "granite-swa-gguf",
    "granite-moe-swa-gguf",
    "seed-oss",
    "arcee",
    "apertus-llama3",
    "exaone4",
    "starcoder2",
    "stablelm",
    "stablelm-parallel",
    "nemotron",
    "jais2",
    "olmo",
    "phi",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt2",
    "gpt-bigcode",
    "falcon-7b",
    "falcon-40b",
    "cohere",
    "gemma",
    "granite-moe-shared",
    "qwen2-moe",
    "glm4-moe",
    "dots1",
    "ernie",
    "ernie-moe",
    "minimax-m2",
    "minimax-01",
    "nemotron-super",
    "deepseek-moe",
    "ling",
    "ling-2",
    "ling-3",
    "laguna",
    "mimo-v2",
    "step-3.5",
    "bitnet-first",
    "hunyuan",
    "hunyuan-moe",
    "hy-v3",
    "llama4-scout",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v3.2",
    "glm-5",
    "glm4-flash",
    "mistral-4-gguf",
    "youtu",
    "minicpm3",
    "falcon-h1",
    "falcon-h1-norm",
    "kimi-linear",
    "lfm2",
    "lfm2-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
    "granite-4-mamba",
    "granite-4-mamba-experts",
    "nemotron-h-experts",
    "solar-open",
    "exaone-moe-4",
    "bloom",
    "afmoe",
    "dbrx",
    "mellum",
    "cohere2-moe",
    "mpt",
    "olmo-clipped",
    "gemma3n-gguf",
    "gemma4",
    "gemma4-large",
    "gemma4-experts",
    "exaone",
    "internlm2",
    "glm-9b",
    "minicpm",
    "jamba",
    "mamba",
    "falcon-mamba",
    "mamba2",
)
ENCODERS_IN_GGUF = (
    "bert",
    "xlm-roberta",
    "nomic-bert",
    "modernbert",
    "eurobert",
    "embedding-gemma",
    "embedding-gemma-dense",
)
CLASSIFIERS_IN_GGUF = ("bert-classifier", "xlm-roberta-classifier", "modernbert-classifier", RERANKER)
_KIMI_STATES = {
    "full_attn_layers": [3],
    "kda_layers": [1, 2, 4],
    "num_heads": 4,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
}
_KIMI = {"linear_attn_config": _KIMI_STATES, "moe_router_activation_func": "sigmoid"}
_MODERN_BERT = {
    "layer_norm_eps": 1e-5,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
# Fields that published files have, transformers 5 does not write, and the converter asks for.
_OLDER_FIELDS = {
    "cohere2": {"rotary_pct": 1.0},
    "qwen3-moe": {"num_experts": 6, "norm_topk_prob": True},
    "granite-4": {"layer_types": ["attention", "attention"]},
    "granite-4-mamba": {"layer_types": ["mamba", "attention", "mamba"]},
    "granite-4-mamba-experts": {"layer_types": ["mamba", "attention", "mamba"]},
    "falcon-h1": {"head_dim": 16},
    "falcon-h1-norm": {"head_dim": 16},
    "kimi-linear": _KIMI | {"first_k_dense_replace": 0},
    "nemotron-h-experts": {"hybrid_override_pattern": "ME*ME", "layers_block_type": None},
    "ling-3": {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_moe_v3",  # transformers' class would put another head_dim in its place
        "head_dim": 16,
        "max_position_embeddings": 256,
        "num_experts_per_tok": 2,
        "num_experts": 6,
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 64,
        "n_group": 3,
        "topk_group": 2,
        "norm_topk_prob": True,
        "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
        "score_function": "sigmoid",
    },
    "mimo-v2": {
        "model_type": "mimo_v2",  # transformers would put its own rotations in place of these
        "rope_parameters": None,
        "rope_theta": 5e6,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "topk_method": "noaux_tc",
    },
    "minimax-m2": {"rotary_dim": 8, "scoring_func": "sigmoid"},
    "granite-swa-gguf": {"no_rope_layers": [1, 0, 1, 1]},
    "mistral-4-gguf": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "dots1": {"scoring_func": "sigmoid"},
    "deepseek-v3": {"scoring_func": "sigmoid"},
    "deepseek-v3.2": {"scoring_func": "sigmoid"},
    "glm-5": {"scoring_func": "sigmoid"},
    "glm4-flash": {"scoring_func": "sigmoid"},
    "exaone-moe-4": {"scoring_func": "sigmoid"},
    "hunyuan-moe": {"moe_intermediate_size": [64, 64], "num_shared_expert": [1, 1]},
    "phi3": {"original_max_position_embeddings": 256},
    "gpt-neox": {"rotary_pct": 0.25},
    "gpt-neox-serial": {"rotary_pct": 0.25},
    "gpt2": {"n_ctx": 256},
    "falcon-7b": {"num_kv_heads": 1},
    "bloom": {"seq_length": 256},
    "afmoe": {"score_func": "sigmoid", "route_norm": True},
    "exaone": {"rms_norm_eps": 1e-6},
    "glm-9b": {"layernorm_epsilon": 1.5625e-7, "seq_length": 256},
    "mpt": {"architectures": ["MPTForCausalLM"]},
    "modernbert": _MODERN_BERT,
    "modernbert-classifier": _MODERN_BERT,
    # transformers would put its own sizes beside these.
    "nomic-bert-experts": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-5,
    },
    "nomic-bert": {
        **dict.fromkeys(("causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm"), False),
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "activation_function": "swiglu",
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_base": 1000.0,
    },
}
VOCABULARY = 264
_PORT = 18_733


def main(source: Path, server: Path, names: Sequence[str]) -> None:
    """Write the fixtures of some families, or of all."""
    FOLDER.mkdir(exist_ok=True)
    recorded = [dict(np.load(path)) if names and path.exists() else {} for path in (LOGPROBS, EMBEDDINGS)]
    logprobs, embeddings = recorded
    with tempfile.TemporaryDirectory() as temporary:
        for index, name in enumerate(names or (*FAMILIES, *ENCODERS_IN_GGUF, *PUBLISHED, *CLASSIFIERS_IN_GGUF)):
            # The folder's name becomes the model's, and llama.cpp has its own ideas of what is called phi3.
            folder, exact = Path(temporary, f"tiny-{index}"), Path(temporary, f"{name}.gguf")
            _write_tiny(folder, name)
            config = json.loads((folder / "config.json").read_text())
            config |= _OLDER_FIELDS.get(name, {})
            published = {field: value for field, value in config.items() if value is not None}
            (folder / "config.json").write_text(json.dumps(published))
            for path, kind in ((FOLDER / f"{name}.gguf", "f16"), (exact, "f32")):
                command = [sys.executable, "-m", "tests.families.record_gguf", "convert", source, folder, path, kind]
                subprocess.run(list(map(str, command)), check=True, stderr=subprocess.DEVNULL)
            if name in CLASSIFIERS_IN_GGUF:
                numbers = _answers(server, exact, _numbers, "--embedding --pooling rank")
                embeddings[name] = numbers[:, : len(expected(name, PROMPT[:5]))]
            elif name in ENCODERS or name in PUBLISHED:
                embeddings[name] = _answers(server, exact, _embedding, "--embedding --pooling mean")
            else:
                logprobs[name] = _answers(server, exact, _distribution, "--flash-attn off")
            print(name)
    np.savez_compressed(LOGPROBS, **logprobs)
    np.savez_compressed(EMBEDDINGS, **embeddings)


def _write_tiny(folder: Path, name: str) -> None:
    if name in PUBLISHED:
        PUBLISHED[name](folder)
    elif name in CLASSIFIERS_IN_GGUF:
        write_tiny_classifier(folder, name)
    else:
        (write_tiny_encoder if name in ENCODERS else write_tiny_family)(folder, name)


def convert(source: Path, folder: Path, path: Path, kind: str) -> None:
    """Convert a folder in this process, to `f16` or `f32`; the converter has a state.

    The vocabulary is byte-level BPE, whatever the family's own is, or the pieces of words that an encoder makes of it.
    """
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    sys.path.append(str(source.parent / "converter"))
    base, encoders = (importlib.import_module(f"conversion.{name}") for name in ("base", "bert"))
    set_pieces = encoders.BertModel.set_vocab
    encoders.NomicBertModel._is_tokenizer_xlmroberta = lambda self: False
    for module in sorted((source / "conversion").glob("*.py")):
        importlib.import_module(f"conversion.{module.stem}")

    def patch(kind: type) -> None:
        for model in kind.__subclasses__():
            if "set_vocab" in vars(model):
                is_encoder = issubclass(model, encoders.BertModel)
                model.set_vocab = set_pieces if is_encoder else lambda self: self._set_vocab_gpt2()
            if "_get_suppress_tokens" in vars(model):
                model._get_suppress_tokens = lambda self: None
            patch(model)

    def load_hparams(folder: Path, *rest: object, **options: object) -> dict[str, object]:
        """As the converter reads them, with those of config.json that transformers 5 has under other names."""
        own = {"rotary_emb_scale_base": None} | json.loads((folder / "config.json").read_text())
        return own | read_hparams(folder, *rest, **options)

    read_hparams = base.ModelBase.load_hparams
    base.ModelBase.load_hparams = staticmethod(load_hparams)
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    patch(base.TextModel)
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(path), "--outtype", kind]
    if "qwen3-next" in path.name or "qwen3.5" in path.name:
        sys.argv += ["--no-mtp"]  # The converter asks for layers that predict further tokens.
    if "dense" in path.name:
        sys.argv += ["--sentence-transformers-dense-modules"]
    importlib.import_module("convert_hf_to_gguf").main()


def _answers(server: Path, path: Path, ask: Callable[[list[int]], np.ndarray], flags: str) -> np.ndarray:
    """The server's answer to each beginning of the prompt, float32 [beginnings, numbers]."""
    flags += " --ctx-size 128 --cache-type-k f32 --cache-type-v f32 --no-warmup --threads 2 --parallel 1"
    command = [server, "--model", path, "--port", _PORT, *flags.split()]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while _ask("/health") is None:
            assert process.poll() is None, f"{server} ended with {process.returncode}"
            time.sleep(0.1)
        return np.stack([ask(PROMPT[:length]) for length in LENGTHS])
    finally:
        process.kill()
        process.wait()


def _embedding(tokens: list[int]) -> np.ndarray:
    answer = _ask("/embedding", {"content": tokens})
    assert answer is not None
    return np.array(answer[0]["embedding"][0], np.float32)


def _numbers(tokens: list[int]) -> np.ndarray:
    """The numbers of a classifier's classes, and what lies behind them."""
    answer = _ask("/embedding", {"content": tokens, "embd_normalize": -1})
    assert answer is not None
    return np.array(answer[0]["embedding"][0], np.float32)


def _distribution(tokens: list[int]) -> np.ndarray:
    """Log-probabilities of every token after these."""
    # Whatever the model prefers, the server is made to choose an "a": it tells nothing of an end or a part of a
    # character. What it tells is of the logits before this bias.
    chosen = {"n_predict": 1, "n_probs": VOCABULARY, "logit_bias": [[97, 1000.0]], "ignore_eos": True}
    answer = _ask("/completion", {"prompt": tokens, "cache_prompt": False} | chosen)
    assert answer is not None
    distribution = np.full(VOCABULARY, np.nan, np.float32)
    for token in answer["completion_probabilities"][0]["top_logprobs"]:
        distribution[token["id"]] = token["logprob"]
    return distribution


def _ask(route: str, body: dict[str, object] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{_PORT}{route}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)
    except OSError:
        return None


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*map(Path, sys.argv[2:5]), sys.argv[5])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
