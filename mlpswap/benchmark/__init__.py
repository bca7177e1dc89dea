"""The editing benchmark: every editor on the same facts, prompts and metrics."""
