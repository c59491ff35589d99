"""The store in Redis, with Debian's redis-server: shared, and of no harm where it is gone, slow or full."""

import logging
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores.redis_store import KEY_PREFIX, RedisStore
from pyllm.kv_transfer.stores.store import Retention
from tests.certificates import self_signed
from tests.kv_transfer.stores.blocks import BLOCK_BYTES, key_of, load, lookup, save
from tests.kv_transfer.stores.redis_server import free_port, listener, redis_server

SECRET = "the-password"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("redis")
    with redis_server(folder):
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[Redis]:
    with Redis(unix_socket_path=str(folder / "redis.sock")) as server:
        server.flushall()
        server.config_set("maxmemory", 0)
        yield server


@pytest.fixture
def store(folder: Path, server: Redis) -> Iterator[RedisStore]:
    store = RedisStore(f"unix://{folder}/redis.sock", deadline=30)
    yield store
    store.close()


@pytest.mark.services
def test_several_engines_share_one(folder: Path, store: RedisStore) -> None:
    other = RedisStore(f"unix://{folder}/redis.sock", deadline=30)
    assert save(store, range(10)) == [True] * 10
    assert lookup(other, range(12)) == list(range(10))
    assert save(other, range(12)) == [True] * 12
    assert load(other, range(14)) == list(range(12))
    assert load(store, range(14)) == list(range(12))
    other.close()
    figures = other.stats()[0]
    assert (figures.num_saved, figures.saved_bytes) == (2, 2 * BLOCK_BYTES)
    assert (figures.num_loaded, figures.loaded_bytes, figures.num_absent) == (12, 12 * BLOCK_BYTES, 2)


@pytest.mark.services
def test_large_blocks_take_several_messages(store: RedisStore) -> None:
    blocks = [memoryview(bytes([number]) * (3 << 20)) for number in range(5)]
    keys = [key_of(number) for number in range(5)]
    assert store.save(keys, blocks) == [True] * 5
    into = [memoryview(bytearray(3 << 20)) for _ in keys]
    assert store.load(keys, into) == [True] * 5
    assert into == blocks


@pytest.mark.services
def test_retention_is_when_redis_forgets(server: Redis, store: RedisStore) -> None:
    save(store, [1])
    save(store, [2], "long")
    assert save(store, [3], "none") == [False]
    assert 23 * 3600 < server.ttl(KEY_PREFIX + key_of(1)) <= 24 * 3600
    assert 6 * 24 * 3600 < server.ttl(KEY_PREFIX + key_of(2)) <= 7 * 24 * 3600
    assert not server.exists(KEY_PREFIX + key_of(3))


@pytest.mark.services
def test_a_block_that_is_there_is_kept_longer_from_when_that_is_asked_for(server: Redis, store: RedisStore) -> None:
    save(store, [1, 2])
    assert save(store, [2, 3], "long") == [True, True]
    assert save(store, [2], "default") == [True]
    days = [server.ttl(KEY_PREFIX + key_of(number)) / (24 * 3600) for number in (1, 2, 3)]
    assert [round(day) for day in days] == [1, 7, 7]
    assert store.stats()[0].num_saved == 3


@pytest.mark.services
@pytest.mark.parametrize("position", [0, 50, 200, BLOCK_BYTES])
def test_a_changed_block_is_forgotten(server: Redis, store: RedisStore, position: int) -> None:
    save(store, [1])
    server.setrange(KEY_PREFIX + key_of(1), position, b"\0\0\0")
    assert load(store, [1]) == []
    assert store.stats()[0].num_corrupt == 1
    assert lookup(store, [1]) == []
    save(store, [1])
    assert load(store, [1]) == [1]


@pytest.mark.services
def test_a_block_of_another_key_or_size_is_not_loaded(server: Redis, store: RedisStore) -> None:
    save(store, [1, 2])
    server.copy(KEY_PREFIX + key_of(1), KEY_PREFIX + key_of(2), replace=True)
    assert load(store, [1, 2]) == [1]
    assert store.load([key_of(1)], [memoryview(bytearray(BLOCK_BYTES + 1))]) == [False]
    assert load(store, [1]) == [1]


@pytest.mark.services
@pytest.mark.parametrize(("setting", "refusing"), [("maxmemory", 1), ("min-replicas-to-write", 1)])
@pytest.mark.parametrize("retention", ["default", "long"])
def test_a_server_that_refuses_blocks_is_not_saved_to_for_a_while(
    server: Redis, folder: Path, setting: str, refusing: int, retention: Retention
) -> None:
    """One that is full, or that takes nothing: a replica, or one whose own disk is full."""
    clock = Clock()
    store = RedisStore(f"unix://{folder}/redis.sock", deadline=30, pause=5, clock=clock)
    save(store, range(3))
    server.config_set(setting, refusing)
    assert save(store, range(5), retention) == [True] * 3 + [False] * 2
    assert load(store, range(5)) == [0, 1, 2]  # It still gives what it has.
    server.config_set(setting, 0)
    assert save(store, [4]) == [False]
    clock.now = 5
    assert save(store, [4]) == [True]
    assert store.stats()[0].num_failed_saves == 3
    assert store.stats()[0].num_pauses == 0
    store.close()


@pytest.mark.services
def test_a_server_that_comes_back_is_asked_after_the_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    port = free_port()
    store = RedisStore(f"redis://user:{SECRET}@127.0.0.1:{port}/0", deadline=30, pause=5, clock=clock)
    assert lookup(store, range(3)) == []
    assert save(store, range(3)) == [False] * 3
    assert load(store, range(3)) == []
    with redis_server(tmp_path, "--port", str(port), "--user", "user", "on", f">{SECRET}", "~*", "+@all"):
        assert save(store, range(3)) == [False] * 3  # It is not asked yet.
        clock.now = 5
        assert save(store, range(3)) == [True] * 3
        assert load(store, range(3)) == [0, 1, 2]
    assert load(store, range(3)) == []
    assert store.stats()[0].num_pauses == 2
    assert store.stats()[0].num_unreadable == 6
    store.close()
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" cannot be used (ConnectionError")[0] for text in texts] == [
        f"Redis at redis://127.0.0.1:{port}/0"
    ] * 2
    assert SECRET not in str(texts)


@pytest.mark.services
def test_a_wrong_password_is_told_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with redis_server(tmp_path, "--port", str(port), "--requirepass", "another"):
        store = RedisStore(f"redis://:{SECRET}@127.0.0.1:{port}", deadline=30)
        assert lookup(store, [1]) == []
        store.close()
    assert "AuthenticationError" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(vars(store).get("_server"))


@pytest.mark.parametrize("answer", [b"", b"*1000\r\n$1", b"-ERR no\r\n", b"nonsense\r\n"])
def test_a_server_that_is_slow_or_none_costs_misses(answer: bytes) -> None:
    clock = Clock()
    with listener(answer) as port:
        store = RedisStore(f"redis://127.0.0.1:{port}", deadline=0.05, clock=clock)
        assert load(store, range(3)) == []
        assert save(store, range(3)) == [False] * 3
        assert lookup(store, range(3)) == []
        assert store.stats()[0].num_pauses == 1
        store.close()


@pytest.mark.services
def test_a_stopped_server_is_given_up_and_asked_again(tmp_path: Path) -> None:
    """It answers late what nobody waits for; the next answer is not taken for that."""
    clock = Clock()
    with redis_server(tmp_path) as process:
        store = RedisStore(f"unix://{tmp_path}/redis.sock", deadline=0.2, clock=clock)
        while save(store, range(3)) != [True] * 3:
            clock.now += 100
        process.send_signal(signal.SIGSTOP)
        assert load(store, range(2)) == []
        process.send_signal(signal.SIGCONT)
        while load(store, [2]) != [2]:
            clock.now += 100
        assert load(store, range(3)) == [0, 1, 2]
        assert store.stats()[0].num_pauses >= 1
        store.close()


@pytest.mark.services
def test_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    flags = ("--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key)
    with redis_server(tmp_path, *flags, "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no"):
        store = RedisStore(f"rediss://localhost:{port}?ssl_ca_certs={certificate}", deadline=30)
        assert save(store, range(3)) == [True] * 3
        assert load(store, range(3)) == [0, 1, 2]
        store.close()
        stranger = RedisStore(f"rediss://localhost:{port}", deadline=30)
        assert load(stranger, range(3)) == []
        stranger.close()


@pytest.mark.services
def test_what_comes_after_close_is_a_miss(store: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    save(store, range(3))
    store.close()
    assert (load(store, range(3)), lookup(store, range(3)), save(store, [1])) == ([], [], [False])
    store.close()
    assert not caplog.records


def test_a_call_that_waits_for_the_server_outlives_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        store = RedisStore(f"redis://127.0.0.1:{server.getsockname()[1]}", deadline=30)
        under_way = threads.submit(load, store, range(3))
        connection, _ = server.accept()
        store.close()
        connection.close()
        assert under_way.result() == []
        assert lookup(store, range(3)) == []


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@host",
        f"redis://:{SECRET}@host:port",
        f"redis://:/{SECRET}@host:6379/0",
        f"redis://h?db={SECRET}",
        f"redis://h?x={SECRET}",
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL of the KV store in Redis cannot be read") as caught:
        RedisStore(url)
    assert SECRET not in str(caught.value)


def test_a_url_that_asks_for_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not set decode_responses"):
        RedisStore("redis://host?decode_responses=True")


def test_no_level_of_the_log_shows_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = RedisStore(f"redis://:{SECRET}@127.0.0.1:{free_port()}?password={SECRET}", deadline=30)
    lookup(store, [1])
    store.close()
    assert caplog.records
    assert SECRET not in caplog.text
