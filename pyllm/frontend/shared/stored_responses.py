"""Stored responses, in bounded memory: the least recently used one is evicted first. Does not look into them."""

from collections import OrderedDict

# Of all encoded responses together.
MAX_BYTES = 256 << 20


class StoredResponses:
    """Responses by tenant and id; another tenant's are not found. At most `max_responses` of them, in `max_bytes`."""

    def __init__(self, max_responses: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._full_size = self._max_bytes = max_bytes
        self._responses: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, response_id: str, tenant: str, response: bytes) -> None:
        """Keep a response, in place of an older one of the same id; one beyond the bounds by itself is not kept."""
        self.delete(response_id, tenant)
        self._responses[tenant, response_id] = response
        self._num_bytes += len(response)
        self._evict()

    def get(self, response_id: str, tenant: str) -> bytes | None:
        """The response, if it is still kept; it counts as used."""
        response = self._responses.get((tenant, response_id))
        if response is not None:
            self._responses.move_to_end((tenant, response_id))
        return response

    def delete(self, response_id: str, tenant: str) -> bool:
        """Drop a response; return whether it was stored."""
        response = self._responses.pop((tenant, response_id), None)
        if response is None:
            return False
        self._num_bytes -= len(response)
        return True

    def resize(self, share: float) -> None:
        """Keep at most this share of the bytes that it was made for."""
        self._max_bytes = int(share * self._full_size)
        self._evict()

    def _evict(self) -> None:
        while len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._num_bytes -= len(oldest)
