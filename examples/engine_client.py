"""The ZeroMQ SDK: token ids to a headless core and back, without torch or a tokenizer in this process."""

import asyncio
import subprocess
import sys
import tempfile

from pyllm import EngineClient, SamplingParams

THE_CAPITAL_OF_FRANCE_IS = [504, 3575, 282, 4649, 314]
PARIS = 7042


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/core"
        core = subprocess.Popen([sys.executable, "-m", "pyllm", "core", "--bind", address])
        client = await EngineClient.connect(address, timeout=120)
        async for delta in client.generate(THE_CAPITAL_OF_FRANCE_IS, SamplingParams(temperature=0, max_tokens=4)):
            print(delta.tokens, "(Paris)" if PARIS in delta.tokens else "")
        print(await client.call("stats"))
        client.close()
        core.terminate()
        core.wait()


asyncio.run(main())
