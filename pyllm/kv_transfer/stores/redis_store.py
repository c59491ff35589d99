"""The store in Redis, which engines on several machines share. The Redis server limits its size and evicts blocks.

Each batch has a deadline, and the caller never waits longer: threads of the store talk to the server, with their own
buffers. A server that is unreachable or too slow is not called for a while. Knows no disk.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pyllm.errors import ConfigError
from pyllm.kv_transfer.stores.block_record import MAX_KEY_BYTES, checksum, new_header, read_header
from pyllm.kv_transfer.stores.store import Retention, StoreCounter, StoreStats
from pyllm.machine.extras import missing_extra

if TYPE_CHECKING:
    from redis import Redis

KEY_PREFIX = b"pyllm:kv:"
MAX_MESSAGE_BYTES = 8 << 20  # of blocks in the answer to one command, or in one pipeline
NUM_THREADS = 8  # for concurrent calls of the server
DEADLINE = 1.0  # seconds for a batch
PAUSE = 5.0  # seconds for which a failed server is not called
# Seconds after which Redis deletes a block, by its retention, even if it was loaded.
EXPIRY: dict[Retention, int] = {"default": 24 * 3600, "long": 7 * 24 * 3600}

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class RedisStore:
    """Blocks at `url`: `redis://`, `rediss://` (TLS) or `unix://`, as redis-py reads it, with user and password in it.

    Args:
        url: Messages leave out its user, password and options.
        deadline: Seconds after which a batch is abandoned.
        pause: Seconds for which a failed server is not called, and for which nothing is saved in one that refuses
            blocks, such as a full one.
        clock: Seconds, from any start.

    Raises:
        ConfigError: redis-py is missing, or the URL cannot be read. A server that is down is no error.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline: float = DEADLINE,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = _connect(url, deadline)
        self._server = _without_secrets(url)
        self._deadline = deadline
        self._pause = pause
        self._clock = clock
        self._threads = ThreadPoolExecutor(NUM_THREADS, "kv-redis")
        self._lock = threading.Lock()
        self._is_closed = False
        self._paused_until = self._refuses_until = float("-inf")
        self._counter = StoreCounter("redis")

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """See `KVStore.lookup`. One message to the server."""
        found = self._ask(lambda: self._exist(keys), self._clock() + self._deadline)
        self._counter.add("num_queries", len(keys))
        self._counter.add("num_hits", sum(found or ()))
        return [False] * len(keys) if found is None else found

    def load(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """See `KVStore.load`."""
        sizes = [len(buffer) for buffer in into]
        with self._counter.timed("load_seconds"):
            values = self._ask(lambda: self._get(keys, sizes), self._clock() + self._deadline)
            if values is None:
                self._counter.add("num_unreadable", len(keys))
                return [False] * len(keys)
            return [self._take(*each) for each in zip(keys, values, into, strict=True)]

    def save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention = "default") -> list[bool]:
        """See `KVStore.save`. The blocks are copied before they are sent."""
        if retention == "none":
            return [False] * len(keys)
        with self._counter.timed("save_seconds"):
            return self._save(keys, blocks, retention)

    def stats(self) -> list[StoreStats]:
        """See `KVStore.stats`. Sizes are 0: see Redis's own metrics."""
        return [self._counter.stats()]

    def close(self) -> None:
        """See `KVStore.close`. It does not wait for a slow server."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def _save(self, keys: Sequence[bytes], blocks: Sequence[memoryview], retention: Retention) -> list[bool]:
        until = self._clock() + self._deadline
        found = None if self._clock() < self._refuses_until else self._ask(lambda: self._exist(keys), until)
        saved = [False] * len(keys) if found is None else found
        missing = [] if found is None else [index for index, is_there in enumerate(found) if not is_there]
        if retention == "long" and any(saved):
            known = [key for key, is_there in zip(keys, saved, strict=True) if is_there]
            self._ask(lambda: self._keep_longer(known), until)
        for part in _parts(missing, [len(block) for block in blocks]):
            values = [_pack(keys[index], blocks[index], retention) for index in part]
            answers = self._ask(self._setting([keys[index] for index in part], values, EXPIRY[retention]), until)
            for index, is_set in zip(part, answers or [False] * len(part), strict=True):
                saved[index] = is_set
                self._counter.add("num_saved", is_set)
                self._counter.add("saved_bytes", len(blocks[index]) * is_set)
        self._counter.add("num_failed_saves", saved.count(False))
        return saved

    def _ask(self, question: Callable[[], Answer], until: float) -> Answer | None:
        """The server's answer; None if it is paused, fails or misses the deadline, or the store is closed."""
        with self._lock:
            if self._is_closed or self._clock() < self._paused_until:
                return None
            future = self._threads.submit(self._answer, question)
        try:
            return future.result(max(0.0, until - self._clock()))
        except CancelledError:  # The store was closed meanwhile.
            return None
        except TimeoutError:
            future.cancel()
            self._pause_for(f"did not answer within {self._deadline:g} s")
        except Exception as error:  # noqa: BLE001 - redis-py also raises any error of its connections
            self._pause_for(f"cannot be used ({type(error).__name__}: {error})")
        return None

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        finally:
            if self._is_closed:
                self._disconnect()

    def _disconnect(self) -> None:
        """Close only idle connections: a thread whose connection is closed may fail in any way."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _pause_for(self, reason: str) -> None:
        with self._lock:
            is_new = self._clock() >= self._paused_until
            if is_new:
                self._paused_until = self._clock() + self._pause
        if is_new:
            self._counter.add("num_pauses")
            logger.warning("Redis at %s %s: the KV store does without it for %g s", self._server, reason, self._pause)

    def _exist(self, keys: Sequence[bytes]) -> list[bool]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(KEY_PREFIX + key)
        return [bool(count) for count in pipeline.execute()]

    def _keep_longer(self, keys: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.expire(KEY_PREFIX + key, EXPIRY["long"])
        for answer in pipeline.execute(raise_on_error=False):
            self._is_taken(answer)

    def _get(self, keys: Sequence[bytes], sizes: Sequence[int]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for part in _parts(range(len(keys)), sizes):
            answers = self._client.mget([KEY_PREFIX + keys[index] for index in part])
            values += [answer if isinstance(answer, bytes) else None for answer in answers]
        return values

    def _setting(self, keys: Sequence[bytes], values: Sequence[bytes], expiry: int) -> Callable[[], list[bool]]:
        def set_all() -> list[bool]:
            pipeline = self._client.pipeline(transaction=False)
            for key, value in zip(keys, values, strict=True):
                pipeline.set(KEY_PREFIX + key, value, ex=expiry)
            return [self._is_taken(answer) for answer in pipeline.execute(raise_on_error=False)]

        return set_all

    def _is_taken(self, answer: Any) -> bool:
        """Whether the server has done a write. A server that refuses writes still answers reads."""
        from redis.exceptions import ResponseError

        if isinstance(answer, ResponseError):
            if self._clock() >= self._refuses_until:
                logger.warning(
                    "Redis at %s refuses blocks (%s): nothing is saved there for %g s",
                    self._server,
                    answer,
                    self._pause,
                )
            self._refuses_until = self._clock() + self._pause
        elif isinstance(answer, Exception):
            raise answer
        return answer is True

    def _take(self, key: bytes, value: bytes | None, into: memoryview) -> bool:
        """Copy a block from its record into the buffer; if the block is damaged, delete it from Redis."""
        header = None if value is None else read_header(memoryview(value))
        if value is None or (header is not None and header.value_bytes != len(into)):
            self._counter.add("num_absent")
            return False
        is_whole = header is not None and header.key == key and header.num_bytes == len(value)
        if header is not None and is_whole:
            into[:] = memoryview(value)[-len(into) :]
            is_whole = checksum(into) == header.checksum
        if not is_whole:
            self._counter.add("num_corrupt")
            self._ask(lambda: self._client.unlink(KEY_PREFIX + key), self._clock() + self._deadline)
            return False
        self._counter.add("num_loaded")
        self._counter.add("loaded_bytes", len(into))
        return True


def _connect(url: str, deadline: float) -> "Redis":
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError(f"the KV store is Redis, and {missing_extra('redis', 'redis')}") from None
    try:
        client = Redis.from_url(
            url, socket_timeout=deadline, socket_connect_timeout=deadline, retry=Retry(NoBackoff(), 0), protocol=2
        )
        client.connection_pool.make_connection()  # Reads the URL's options; connects to nothing.
        parts = urlsplit(url)
        if parts.scheme != "unix" and parts.path.strip("/"):
            int(parts.path.strip("/"))  # A / in the password ends the host early, and redis-py would take localhost.
    except Exception:  # noqa: BLE001 - the text of any error may hold parts of the URL
        raise ConfigError(
            "the URL of the KV store in Redis cannot be read: write redis://[user:password@]host[:port][/db], or "
            "rediss:// for TLS; write a / in the password as %2F"
        ) from None
    if client.get_encoder().decode_responses:
        raise ConfigError("the URL of the KV store in Redis must not set decode_responses: KV blocks are no text")
    return client


def _without_secrets(url: str) -> str:
    """The scheme, host, port and path of a URL."""
    parts = urlsplit(url)
    host = parts.hostname or ("" if parts.scheme == "unix" else "localhost")
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _pack(key: bytes, block: memoryview, retention: Retention) -> bytes:
    return b"".join((new_header(key, len(block), checksum(block), retention).pack(), block))


def _parts(indices: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Split the indices into parts that fit into one message; a larger block is a part of its own."""
    part: list[int] = []
    num_bytes = 0
    for index in indices:
        if part and num_bytes + sizes[index] > MAX_MESSAGE_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(index)
        num_bytes += sizes[index] + MAX_KEY_BYTES
    if part:
        yield part
