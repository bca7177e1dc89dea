"""What can go wrong through the user's input. The command line prints one sentence and exits with 2."""

from collections.abc import Iterator
from contextlib import contextmanager


class MlpSwapError(Exception):
    """Base of every error that the user can mend; its text says where, what was found and what was expected."""


class ConfigError(MlpSwapError, ValueError):
    """A configuration file, an override or a combination of settings is wrong."""


class FactsError(MlpSwapError, ValueError):
    """A fact file or a fact set is wrong: names the file and the line, or the key."""


class RegistryError(MlpSwapError, LookupError):
    """A construction or an editor of that name is not there, or cannot be loaded."""


class RunFolderError(MlpSwapError, OSError):
    """A run folder cannot be written, or holds a finished run."""


class CheckpointError(MlpSwapError, ValueError):
    """A saved model, checkpoint or patch is damaged, or does not belong to the model at hand."""


class NonFiniteError(MlpSwapError, ValueError):
    """A tensor holds NaN or infinity; the text names it."""


class LaunchError(MlpSwapError, RuntimeError):
    """One of several processes cannot go on, since another one has ended."""


class InfeasibleConstructionError(MlpSwapError, ValueError):
    """The construction cannot exist at this size; the text holds the violated inequality with its numbers."""


class DegenerateKeysError(MlpSwapError, ValueError):
    """Keys are zero, or equal while their values differ. `indices` lists them."""

    def __init__(self, message: str, indices: tuple[int, ...] = ()):
        super().__init__(message)
        self.indices = indices


class RequestError(MlpSwapError, ValueError):
    """An edit request cannot be carried out; the text names the request's id."""


class UnsupportedEditorError(MlpSwapError, TypeError):
    """The editor needs something that this model's adapter does not offer."""


class SingularMomentError(MlpSwapError, ValueError):
    """The second moment of the keys has no inverse. `rank` and `width` say by how much."""

    def __init__(self, message: str, rank: int, width: int):
        super().__init__(message)
        self.rank = rank
        self.width = width


class EmbeddingsError(MlpSwapError, ValueError):
    """A table of embeddings cannot be made as asked, or has not got what was asked of it."""


class NotDecodableError(EmbeddingsError):
    """Some values have the largest score under no output. `indices` lists them; the text is "values I, J `why`"."""

    def __init__(self, why: str, indices: tuple[int, ...]):
        more = f" and {len(indices) - 8} more" if len(indices) > 8 else ""
        super().__init__(f"values {', '.join(map(str, indices[:8]))}{more} {why}")
        self.indices = indices


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors of the body become a `ConfigError` that begins with `where`, such as the file that is wrong."""
    try:
        yield
    except MlpSwapError as error:
        if str(error).startswith(where):
            raise
        raise ConfigError(f"{where}: {error}") from error
