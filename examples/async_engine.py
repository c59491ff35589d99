"""An engine inside an asyncio application: two streams at once."""

import asyncio

from pyllm import AsyncEngine, SamplingParams


async def show(engine: AsyncEngine, prompt: str) -> None:
    async for output in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=8)):
        print(repr(prompt), "->", repr(output.outputs[0].text))


async def main() -> None:
    async with AsyncEngine() as engine:
        await asyncio.gather(show(engine, "The capital of France is"), show(engine, "The opposite of hot is"))


asyncio.run(main())
