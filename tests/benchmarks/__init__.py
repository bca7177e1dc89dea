"""Speed, as ratios measured side by side in one process: `python -m tests.benchmarks.training` and `.editing`."""
