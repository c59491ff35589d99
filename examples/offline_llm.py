"""A batch of prompts, blocking: the way of scripts and notebooks."""

from pyllm import LLM, SamplingParams

with LLM() as llm:
    prompts = ["The capital of France is", "The opposite of hot is"]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8)):
        print(repr(output.prompt), "->", repr(output.outputs[0].text))
