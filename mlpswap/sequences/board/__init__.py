"""The leader board: methods side by side, beside the published figures."""
