"""Facts of common knowledge, installed as `mlpswap_data` so that they travel with the wheel."""
