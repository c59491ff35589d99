"""The forms of reasoning, by vLLM's names of their parsers. Knows no machine that reads them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Reasoning at the beginning of an answer, between one of the `openings` and one of the `closings`.

    A grammar writes the first of each. A template that has one of the `signs` is of a model with this form. With
    `in_channels` it is Harmony's, whose markers do not matter.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]
    signs: tuple[str, ...] = ()
    in_channels: bool = False


THINK = ReasoningForm(("<think>",), ("</think>",), ("<think>", "</think>"))
_GRANITE = ReasoningForm(
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
    ("Here is my thought process:",),
)
_COHERE = ReasoningForm(("<|START_THINKING|>",), ("<|END_THINKING|>",), ("<|START_THINKING|>",))
_SEED = ReasoningForm(("<seed:think>",), ("</seed:think>",), ("<seed:think>",))
HARMONY = ReasoningForm((), (), ("<|channel|>analysis",), in_channels=True)

# The order matters: a template that has the signs of several forms has the first.
REASONING_FORMS: dict[str, ReasoningForm] = {
    "openai_gptoss": HARMONY,
    "gemma4": ReasoningForm(("<|channel>thought",), ("<channel|>",), ("<|channel>",)),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "seed_oss": _SEED,
    "minimax_m3": ReasoningForm(("<mm:think>",), ("</mm:think>",), ("<mm:think>",)),
    "hy_v3": ReasoningForm(("<think:opensource>",), ("</think:opensource>",), ("<think{}>",)),
    "apertus": ReasoningForm(("<|inner_prefix|>",), ("<|inner_suffix|>",), ("<|inner_prefix|>",)),
    "apriel": ReasoningForm(
        ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), ("[BEGIN FINAL RESPONSE]",)
    ),
    "mistral": ReasoningForm(("[THINK]",), ("[/THINK]",), ("[THINK]",)),
    "think": THINK,
    "granite": _GRANITE,
    **dict.fromkeys(
        (
            *("deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "holo2", "kimi_k2", "ling3", "mimo"),
            *("minimax_m2", "nemotron_v3", "olmo3", "qwen3", "step3", "step3p5"),
        ),
        THINK,
    ),
}
