"""A core with LoRA adapters but without a model: it keeps a list of them, as the real one does."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pyllm.wire.messages import Adapter, AdapterList, Call, ClientMessage, Hello, ModelInfo, Rejected, Reply, Submit
from tests.client.fake_core import EPOCH, MODEL, ScriptedCore

DIGEST = "d1"


def adapter(name: str, digest: str = DIGEST, path: str = "") -> Adapter:
    return Adapter(name, path or f"/adapters/{name}", digest, 8)


class AdapterCore(ScriptedCore):
    """`files` are the digests of adapters by path, `resolved` the paths of those that are only named.

    With `pauses_loads` it answers a `load_adapter` only when `finish_load` is called.
    """

    def __init__(
        self,
        script: Callable[[list[int], int], list[int]] = lambda prompt, sample: [65, 66, 0],
        model: ModelInfo = MODEL,
        epoch: int = EPOCH,
        *,
        adapters: Iterable[Adapter] = (),
    ) -> None:
        super().__init__(script, model, epoch)
        self.adapters = {each.name: each for each in adapters}
        self.files = {each.path: each.digest for each in adapters}
        self.resolved: dict[str, str] = {}
        self.pauses_loads = False
        self.loads: list[tuple[int, list[Any]]] = []

    def handle(self, message: ClientMessage) -> None:
        match message:
            case Hello() if self.answers_hello:
                super().handle(message)
                self.announce()
            case Submit(request=request, adapter=name) if name and not self._knows(name):
                text = f"adapter {name!r} is not loaded; loaded: {', '.join(self.adapters)}"
                self.say(Rejected(request, "invalid", text, "adapter"))
            case Call(_, number, "load_adapter", args) if self.pauses_loads:
                self.loads.append((number, list(args)))
            case Call(_, number, "load_adapter", args):
                self._load(number, *args)
            case Call(_, number, "unload_adapter", (name,)):
                is_there = self.adapters.pop(name, None) is not None
                self.announce()
                self.say(Reply(number, is_there, None if is_there else f"adapter {name!r} is not loaded"))
            case Call(_, number, "adapters"):
                counts = {"is_loaded": True, "num_running": 1, "num_waiting": 2}
                self.say(
                    Reply(number, True, [msgspec.structs.asdict(each) | counts for each in self.adapters.values()])
                )
            case _:
                super().handle(message)

    def announce(self) -> None:
        """Tell the client all adapters."""
        self.say(AdapterList(self.epoch, tuple(self.adapters.values())))

    def finish_load(self) -> None:
        """Answer the first `load_adapter` that waits."""
        number, args = self.loads.pop(0)
        self._load(number, *args)

    def _load(self, number: int, name: str, path: str = "", in_place: bool = False) -> None:
        path = path or self.resolved.get(name, "")
        before = self.adapters.get(name)
        if not path:
            self.say(Reply(number, False, f"there is no adapter {name!r}"))
        elif before is not None and not in_place and before.path != path:
            self.say(Reply(number, False, f"adapter {name!r} is loaded from {before.path}: unload it first"))
        elif path not in self.files:
            self.say(Reply(number, False, f"there is no adapter {path}"))
        else:
            self.adapters[name] = Adapter(name, path, self.files[path], 8)
            self.announce()
            self.say(Reply(number, True, msgspec.structs.asdict(self.adapters[name])))

    def _knows(self, name: str) -> bool:
        return any(name in (each.name, each.key) for each in self.adapters.values())
