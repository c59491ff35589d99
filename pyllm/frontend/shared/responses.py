"""Stored responses, in memory and bounded: who was used least recently leaves first. Does not look into records."""

from collections import OrderedDict

# Of all records together, as they are encoded.
MAX_BYTES = 256 << 20


class ResponseStore:
    """Records by owner and id; another owner's are not found. At most `max_responses` of them, in `max_bytes`."""

    def __init__(self, max_responses: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._records: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, response_id: str, owner: str, record: bytes) -> None:
        """Keep a record, in place of an older one of the same id; one beyond the bounds by itself is not kept."""
        self.delete(response_id, owner)
        self._records[owner, response_id] = record
        self._num_bytes += len(record)
        while len(self._records) > self._max_responses or self._num_bytes > self._max_bytes:
            _, oldest = self._records.popitem(last=False)
            self._num_bytes -= len(oldest)

    def get(self, response_id: str, owner: str) -> bytes | None:
        """The record, if it is still kept; it counts as used."""
        record = self._records.get((owner, response_id))
        if record is not None:
            self._records.move_to_end((owner, response_id))
        return record

    def delete(self, response_id: str, owner: str) -> bool:
        """Drop a record; whether it was there."""
        record = self._records.pop((owner, response_id), None)
        if record is None:
            return False
        self._num_bytes -= len(record)
        return True
