"""Edits and log-probabilities of logits on a GPU, by torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pyllm_kernels.ops.edit_logits import LogitsEdits
from pyllm_kernels.ops.logprobs import EXPONENTIAL_UNIT


def edit_logits(
    logits: Tensor,
    rows: Tensor,
    edits: LogitsEdits,
    mask_rows: Tensor | None = None,
    masks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    edited = logits[rows.long()].float()  # [samples, vocabulary]
    num_samples, vocabulary = edited.shape
    if mask_rows is not None and masks is not None:
        edited.masked_fill_(_banned(masks, vocabulary)[mask_rows.long()], -torch.inf)
    starts = edits.starts.long()
    samples = torch.arange(num_samples, device=logits.device)
    of_edits = torch.repeat_interleave(samples, starts.diff(), output_size=len(edits.ids))
    places = of_edits * vocabulary + edits.ids
    biased = edited.view(-1)[places] + edits.bias
    penalised = torch.where(biased > 0, biased / edits.repetition, biased * edits.repetition)
    edited.view(-1)[places] = penalised - edits.subtracted
    return edited if out is None else out.copy_(edited)


def logprobs(logits: Tensor, rows: Tensor, chosen: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    wide = logits[rows.long()].float()  # [samples, vocabulary]
    wide = wide.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = chosen.long().unsqueeze(-1)
    ranks = (wide >= wide.gather(1, ids)).sum(-1)
    ids = torch.cat((ids, _first_best(wide, num_top)), dim=-1)
    greatest = wide.amax(-1, keepdim=True)
    exponentials = (wide - greatest).exp_().nan_to_num_(nan=0.0)
    sums = (exponentials.double() / EXPONENTIAL_UNIT).round_().long().sum(-1, keepdim=True) * EXPONENTIAL_UNIT
    told = wide.gather(1, ids).double()
    values = torch.where(told == -torch.inf, told, told - greatest.double() - sums.log())
    return ids.int(), values.float(), ranks.int()


def _banned(masks: Tensor, vocabulary: int) -> Tensor:
    """The tokens whose bits are 0 or missing; bool [masks + 1, vocabulary]; the last row, mask -1, bans nothing."""
    shifts = torch.arange(32, dtype=torch.int32, device=masks.device)
    bits = (masks.view(torch.int32).unsqueeze(-1) >> shifts & 1).flatten(1)[:, :vocabulary]
    banned = F.pad(bits == 0, (0, vocabulary - bits.shape[1]), value=True)
    return F.pad(banned, (0, 0, 0, 1), value=False)


def _first_best(numbers: Tensor, count: int) -> Tensor:
    """The indices of the greatest numbers of each row, equal ones by ascending index; int64 [rows, count]."""
    bits = (numbers + 0.0).view(torch.int32)  # -0 becomes 0.
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)  # in the order of the floats
    places = torch.arange(numbers.shape[1], device=numbers.device)
    keys = (ordered.long() << 32) + (0xFFFFFFFF - places)
    return 0xFFFFFFFF - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
