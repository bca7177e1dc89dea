"""The options of the exam. They are an entry point of pytest, which reads those of a conftest.py too late for `--pyargs`."""

from typing import Any


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("mlpswap", "exam of constructions and editors (pytest --pyargs mlpswap.testing)")
    for kind in ("construction", "editor"):
        group.addoption(
            f"--{kind}",
            action="append",
            default=[],
            dest=f"mlpswap_{kind}",
            metavar="NAME",
            help=f"examine this {kind}; may be repeated",
        )
