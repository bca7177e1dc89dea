"""The presets, installed as `mlpswap_configs` so that they travel with the wheel."""
