from .answer_file import AnswerFile
from .batch_run import BatchServer, run_batch
from .request_file import RequestFile, WrongLinesError

__all__ = [
    "AnswerFile",
    "BatchServer",
    "RequestFile",
    "WrongLinesError",
    "run_batch",
]
