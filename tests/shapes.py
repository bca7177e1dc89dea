"""The type checker of the test suite: an int counts as a float, as mypy has it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
