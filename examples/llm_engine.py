"""The loop in your own hands: add requests, step, look at what changed."""

from pyllm import LLMEngine, SamplingParams

engine = LLMEngine()
engine.add_request("paris", "The capital of France is", SamplingParams(temperature=0, max_tokens=8))
engine.add_request("cold", "The opposite of hot is", SamplingParams(temperature=0, max_tokens=8))
while engine.has_unfinished_requests():
    for output in engine.step():
        print(output.request_id, "->", repr(output.outputs[0].text))
engine.close()
