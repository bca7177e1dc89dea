"""From text to edit requests: prompts, targets and the subject's last token as a tokenizer has them.

Nothing is encoded alone that the model will see within a text, since tokenizers treat a word by what stands
before it: a target is what its tokens add to those of the prompt, and the subject's end is found by comparing
the tokens of the text up to it with those of the whole text.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from mlpswap.editing.requests import Context, EditRequest, require_texts
from mlpswap.errors import ConfigError, RequestError
from mlpswap.facts import printable

ESSENCE = "{} is a"  # arXiv 2202.05262, 3.1: the prompt at which the essence of the subject shall stay
_HOLE = re.compile(r"\{\w*\}")


class Phrasing:
    """A transformers tokenizer, slow or fast. `lead` is what it puts before every text, such as a BOS."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        bare, full = self.encode("a"), tuple(tokenizer("a")["input_ids"])
        starts = [at for at in range(len(full)) if full[at : at + len(bare)] == bare]
        if not bare or not starts:
            raise ConfigError(
                "the tokenizer gives no token, or other ones with its special tokens than without"
            )
        self.lead = full[: starts[0]]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids without special tokens. Raises `RequestError` where the tokenizer has none for a part of the text."""
        try:
            return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception as error:  # a bare one, of tokenizers without an unknown token
            raise RequestError(f"the tokenizer cannot take '{printable(text)}': {error}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def request(
        self,
        prompt: str,
        subject: str,
        target: str,
        *,
        id: str | None = None,
        old_target: str | None = None,
        prefixes: Sequence[str] = (),
        separator: str = " ",
    ) -> EditRequest:
        """After `prompt`, such as "The capital of {} is", the model shall say `separator` and `target`.

        The braces, with or without a name, stand for the subject; its last token is edited. Each prefix is a
        sentence to put before the prompt. A target that begins with white space gets no separator. Raises
        `RequestError` with the id, by default the subject.
        """
        id = subject if id is None else id
        old = {} if old_target is None else {"old_target": old_target}
        require_texts(id=id, prompt=prompt, subject=subject, target=target, separator=separator, **old)
        where = f"request '{printable(id)}'"
        holes = list(_HOLE.finditer(prompt))
        if len(holes) != 1:
            raise RequestError(
                f"{where}: expected one pair of braces for the subject, such as {{}}, "
                f"in the prompt '{printable(prompt)}': found {len(holes)}"
            )
        if not subject.strip():
            raise RequestError(f"{where}: the subject is empty")
        text = prompt[: holes[0].start()] + subject + prompt[holes[0].end() :]
        if text != text.rstrip():
            raise RequestError(f"{where}: the prompt ends in white space; the target brings its own")
        end = holes[0].start() + len(subject)
        bare = self.context(text, end, subject, where)
        prefixed = tuple(
            self.context(f"{prefix} {text}", len(prefix) + 1 + end, subject, where) for prefix in prefixes
        )
        neutral = self.context(ESSENCE.replace("{}", subject), len(subject), subject, where)
        return EditRequest(
            id,
            bare.ids,
            bare.edited,
            self.continuation(bare, text, target, separator, where),
            None if old_target is None else self.continuation(bare, text, old_target, separator, where),
            prefixed=prefixed,
            essence=neutral.ids[: neutral.edited + 1],
        )

    def context(self, text: str, end: int, subject: str, where: str) -> Context:
        """The text's tokens, and which of them holds the last character of the subject, before `end`."""
        whole, cut = self.known(text, where), self.known(text[:end], where)
        # The subject may share its last token with what follows: then the first token that differs holds its end.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, cut, strict=False)))
        edited = min(shared, len(cut) - 1)
        if _letters(subject) not in _letters(self.decode(whole[: edited + 1])):
            raise RequestError(
                f"{where}: no token of '{printable(text)}' ends the subject '{printable(subject)}'"
            )
        return Context((*self.lead, *whole), len(self.lead) + edited)

    def known(self, text: str, where: str) -> tuple[int, ...]:
        """`encode`, unless there are words that the tokenizer does not know."""
        ids, unknown = self.encode(text), getattr(self.tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in ids:
            raise RequestError(f"{where}: the tokenizer does not know all of '{printable(text)}'")
        return ids

    def continuation(
        self, bare: Context, text: str, target: str, separator: str, where: str
    ) -> tuple[int, ...]:
        """What the target adds to the tokens of the prompt."""
        if not target.strip():
            raise RequestError(f"{where}: the target is empty")
        joint = "" if target[0].isspace() else separator
        ids = (*self.lead, *self.known(text + joint + target, where))
        if ids[: len(bare.ids)] != bare.ids:
            raise RequestError(f"{where}: the target '{printable(target)}' changes the tokens of the prompt")
        return ids[len(bare.ids) :]


def _letters(text: str) -> str:
    """Without white space, case and variants of characters, in which tokenizers differ."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
