from .kv_selectors import SelectorInputs, find_kv_selector, load_kv_selector
from .sparse_limits import check_sparse_attention
from .top_k_selector import TopKSelector

__all__ = ["SelectorInputs", "TopKSelector", "check_sparse_attention", "find_kv_selector", "load_kv_selector"]
