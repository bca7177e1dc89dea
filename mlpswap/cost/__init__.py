"""How many parameters a construction needs to store a fact set (arXiv 2512.00207, appendix A.1)."""

from mlpswap.cost.config import CostConfig, Entry
from mlpswap.cost.search import Found, Outcome, smallest_size

__all__ = ["CostConfig", "Entry", "Found", "Outcome", "smallest_size"]
