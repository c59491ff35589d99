"""Changes of the weights on several cores: all of them, or none; new requests go to cores with the new ones."""

from typing import Any

import msgspec
import pytest

from pyllm.client.client import EngineClient
from pyllm.client.request_hasher import RequestHasher
from pyllm.errors import RequestError
from pyllm.parameters.sampling_params import SamplingParams
from pyllm.wire.messages import Call, ClientMessage, Rejected, Reply, Submit, WeightsChanged
from tests.client import test_several_cores
from tests.client.fake_core import EPOCH, MODEL, FakeCore, Row, deltas
from tests.client.mortal_core import Reader

GREEDY = SamplingParams(temperature=0.0)


class WeighingCore(FakeCore):
    """Reads versions by the last word of a path; `refuses` a method."""

    def __init__(self, refuses: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.refuses = refuses

    def handle(self, message: ClientMessage) -> None:
        super().handle(message)
        if not isinstance(message, Call):
            return
        if message.method == self.refuses:
            self.say(Reply(message.id, False, f"{self.refuses} is refused"))
        elif message.method == "load_weights":
            self.say(Reply(message.id, True, message.args[0].rpartition("/")[2]))
        elif message.method == "switch_weights":
            self.say(WeightsChanged(self.epoch, message.args[0]))
            self.say(Reply(message.id, True, None))
        elif message.method == "drop_weights":
            self.say(Reply(message.id, True, None))

    def methods(self) -> list[str]:
        return [call.method for call in self.sent(Call)]


async def connected(*cores: FakeCore) -> EngineClient:
    return await test_several_cores.connected(*cores)


async def test_all_cores_load_before_any_switches() -> None:
    cores = [WeighingCore(epoch=EPOCH + index) for index in range(2)]
    client = await connected(*cores)
    before = client.fingerprint
    assert await client.update_weights("/a/second", "continue") == "second"
    for core in cores:
        assert core.methods() == ["load_weights", "switch_weights"]
        assert core.sent(Call)[-1].args == ("second", "continue")
    assert (client.weights_version, client.model.weights_version) == ("second", "second")
    assert client.fingerprint != before == client.base_fingerprint
    client.close()


async def test_one_that_cannot_load_leaves_all_as_they_are() -> None:
    cores = [WeighingCore(epoch=EPOCH), WeighingCore("load_weights", epoch=EPOCH + 1)]
    client = await connected(*cores)
    with pytest.raises(RequestError, match="load_weights is refused"):
        await client.update_weights("/a/second")
    assert cores[0].methods() == ["load_weights", "drop_weights"]
    assert cores[1].methods() == ["load_weights"]
    assert client.weights_version == ""
    client.close()


async def test_new_requests_go_to_cores_with_the_new_weights() -> None:
    cores = [WeighingCore(epoch=EPOCH + index) for index in range(2)]
    client = await connected(*cores)
    cores[1].say(WeightsChanged(cores[1].epoch, "second"))
    for _ in range(3):
        client.submit([5], GREEDY, Reader(1))
    assert [len(core.sent(Submit)) for core in cores] == [0, 3]
    cores[0].say(WeightsChanged(cores[0].epoch, "second"))
    for _ in range(4):
        client.submit([5], GREEDY, Reader(1))
    assert len(cores[0].sent(Submit)) == 2
    client.close()


async def test_a_request_on_its_way_to_other_weights_waits_for_its_own() -> None:
    first, second = (WeighingCore(epoch=EPOCH + index) for index in range(2))
    client = await connected(first, second)
    client.submit([5], GREEDY, Reader(1))
    (submit,) = [*first.sent(Submit), *second.sent(Submit)]
    at = first if first.sent(Submit) else second
    other = second if at is first else first
    at.say(deltas(Row(submit.request, [7]), epoch=at.epoch))
    at.say(WeightsChanged(at.epoch, "second"))  # It was on its way when the core changed its weights.
    at.say(Rejected(submit.request, "weights", "other weights"))
    (again,) = other.sent(Submit)
    assert (again.weights_version, len(again.outputs)) == ("", 1)
    client.close()


def test_blocks_have_names_by_the_version() -> None:
    first, second = (
        RequestHasher(msgspec.structs.replace(MODEL, weights_version=version, cache_namespace="00" * 32))
        for version in ("", "second")
    )
    prompt = list(range(40))
    assert len(first.hashes(prompt)) == 2
    assert not set(first.hashes(prompt)) & set(second.hashes(prompt))
