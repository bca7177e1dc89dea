"""What a host knows by name: its facts, its vocabulary, and the rows of its tables that belong to them."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mlpswap.errors import FactsError, NonFiniteError
from mlpswap.facts import FactSet, check_count, check_text
from mlpswap.model.tokenization import MlpSwapTokenizer, Vocabulary


class FactLookup:
    """The part of `MlpSwapForCausalLM` that deals in names.

    `facts` is the fact set stored now, `tokenizer` turns text into ids, `history` lists how the fact MLP was
    built and which patches were applied since. Both of the former are None for a model made from a
    configuration alone.
    """

    if TYPE_CHECKING:  # given by the model
        transformer: Any
        lm_head: Any

    facts: FactSet | None = None
    tokenizer: MlpSwapTokenizer | None = None
    history: tuple[dict[str, Any], ...] = ()

    @property
    def vocabulary(self) -> Vocabulary:
        """What each row of the embedding table stands for. Raises `FactsError` if the model has none."""
        if self.tokenizer is None:
            raise FactsError(
                "this model has no vocabulary: make it with build_host or load a complete folder"
            )
        return self.tokenizer.vocabulary

    def known_facts(self) -> FactSet:
        """`facts`. Raises `FactsError` if there are none."""
        if self.facts is None:
            raise FactsError("this model has no facts: make it with build_host or load a complete folder")
        return self.facts

    def key_rows(self) -> Float[Tensor, "F d"]:
        """Unit embeddings of the keys, in the order of the fact set."""
        return F.normalize(self.transformer.wte.weight[list(self.vocabulary.key_ids)], dim=1)

    def value_rows(self) -> Float[Tensor, "n_v d"]:
        """Unit rows of the head for the values, in the order of the fact set."""
        return F.normalize(self.lm_head.weight[list(self.vocabulary.value_ids)], dim=1)

    def other_rows(self) -> Float[Tensor, "n_c d"]:
        """Unit rows of the head for every other token: a value must beat these too."""
        table = self.lm_head.weight
        others = torch.ones(len(table), dtype=torch.bool, device=table.device)
        others[list(self.vocabulary.value_ids)] = False
        return F.normalize(table[others], dim=1)

    @torch.no_grad()
    def last_scores(
        self, input_ids: Int[Tensor, "B T"], attention_mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """The logits after each row's last real token. Raises `NonFiniteError` where they are none to choose by."""
        logits = self(input_ids, attention_mask=attention_mask, logits_to_keep=1).logits[:, -1]  # type: ignore[operator]
        spread = logits.amax(dim=1) - logits.amin(dim=1)
        # An overflow before the last normalisation leaves zeros, of which argmax would take the first: <pad>.
        if not (torch.isfinite(spread) & (spread > 0)).all():
            raise NonFiniteError(
                "the model's scores are not finite, or all the same, so that it has no answer: its weights hold NaN, "
                "infinity or numbers too large for its precision"
            )
        return logits

    def ask_top(self, prompt: str, k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest next tokens of the whole vocabulary, as (surface, logit).

        Raises `FactsError` for an empty prompt and for a k that is not from 1 to the size of the vocabulary,
        `ConfigError` for a prompt longer than the model's `n_positions`.
        """
        entries = self.vocabulary.entries
        assert self.tokenizer is not None
        check_text("the prompt", prompt)
        if not prompt.strip():
            raise FactsError("there is nothing to continue: the prompt is empty")
        check_count("k", k, 1, len(entries))
        ids = torch.tensor([self.tokenizer.encode(prompt)], device=self.lm_head.weight.device)
        best = self.last_scores(ids)[0].topk(k)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(entries[token][1], logit) for token, logit in pairs]

    def ask(self, prompt: str) -> str:
        """The one token that follows the prompt: `ask("The writer of Emma is")` -> "Jane Austen"."""
        return self.ask_top(prompt, 1)[0][0]
