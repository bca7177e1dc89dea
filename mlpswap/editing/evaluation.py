"""How well an edit worked: the editing scores, each defined once.

What the model computes before the fact MLP does not depend on the edit. It is computed once per prompt
(`PromptCache`), and each edited fact MLP is then scored on the cached rows; the model itself is never
touched.

Every accuracy is over the full vocabulary, ties being failures, and is a mean over facts: a fact with
several prompts counts with the mean over them. arXiv 2512.00207, A.3.4, calls our specificity efficacy and
the other way round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mlpswap.constructions.base import FactMLP, FactMLPConfig
from mlpswap.editing.host import evaluating, last_rows
from mlpswap.editing.requests import Prompts
from mlpswap.errors import ConfigError
from mlpswap.facts import FactSet
from mlpswap.metrics import Rivals, Rows, is_top1, rows_of, token_nll
from mlpswap.model.modeling import MlpSwapForCausalLM
from mlpswap.model.patch import Patch
from mlpswap.tasks.base import IGNORE, Batch, Task

SCORER = "top1_full_vocabulary"
CORE = ("efficacy", "paraphrase", "specificity")
PROBES = (*CORE, "paraphrase_unseen", "specificity_paraphrase")

DEFINITIONS: dict[str, str] = {
    "efficacy": "share of altered facts whose new value is the top answer to the edit prompt",
    "paraphrase": "the same on the 15 trained templates other than the edit prompt's",
    "paraphrase_unseen": "the same on templates 17-32, never trained",
    "specificity": "share of preserved facts whose old value is the top answer to their edit prompt",
    "specificity_paraphrase": "the same on the 15 trained templates other than the edit prompt's",
    "success": "share of altered facts whose new value is likelier than the old one, on the edit prompt; "
    "those that keep their value by chance have no two values to compare and are left out",
    "score_harmonic": "harmonic mean of efficacy, paraphrase and specificity; 0 if one of them is 0",
    "score_geometric": "their geometric mean; never less than score_harmonic, so never compare the two",
    "nonfact_ce_ratio": "cross-entropy of predicted tokens other than the value, after / before, same prompts",
    "nonfact_ppl_ratio": "exp(after - before) of the cross-entropies of nonfact_ce_ratio",
    "nonfact_word_ce_ratio": "nonfact_ce_ratio without the book token, which nothing can predict",
    "nonfact_word_ppl_ratio": "nonfact_ppl_ratio without the book token",
}


@dataclass(frozen=True, eq=False)
class PromptCache:
    """Rows at the value position of n prompts, the wanted token of each, and the fact that it asks for.

    `rivals` change no score, only how long it takes.
    """

    rows: Rows
    wanted: Int[Tensor, " n"]
    facts: Int[Tensor, " n"]
    rivals: Rivals | None = None

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, index: Tensor | slice) -> "PromptCache":
        rivals = None if self.rivals is None else self.rivals[index]
        return PromptCache(self.rows[index], self.wanted[index], self.facts[index], rivals)

    def with_rivals(self, model: MlpSwapForCausalLM) -> "PromptCache":
        """The same, faster to score for many fact MLPs that differ little from the one in place."""
        return replace(self, rivals=Rivals.of(model, self.rows.mixed(model.fact_mlp)))

    @classmethod
    def of(
        cls, model: MlpSwapForCausalLM, batch: Batch, facts: Int[Tensor, " n"], *, chunk: int = 1024
    ) -> "PromptCache":
        """From prompts of a task; the wanted token is the label of the last position."""
        rows = last_rows(model, Prompts(batch.input_ids, batch.attention_mask), chunk=chunk)
        return cls(rows, batch.labels[:, -1].to(model.device), facts.to(model.device))


def patched_fact_mlp(model: MlpSwapForCausalLM, patch: Patch) -> FactMLP:
    """The fact MLP that `patch` would put into the model, which stays as it is."""
    mlp = model.fact_mlp
    state: dict[str, Tensor] = dict(mlp.state_dict())
    config = mlp.config
    for change in patch.changes:
        if change.module != model.fact_mlp_name:
            raise ValueError(f"the patch changes {change.module}, which is not the fact MLP")
        if change.new_config is not None:
            config, state = FactMLPConfig(**change.new_config), {}
        state |= change.new
    edited = FactMLP(config, dtype=mlp.down.weight.dtype).to(mlp.down.weight.device)
    edited.load_state_dict(state)
    return edited


@torch.no_grad()
def correct(
    model: MlpSwapForCausalLM, mlp: FactMLP, cache: PromptCache, *, chunk: int = 1024
) -> Bool[Tensor, " n"]:
    """Whether each prompt's wanted token is the top answer with `mlp` in place; stops at the first rival."""
    with evaluating(model):
        parts = [
            is_top1(model, part.rows.mixed(mlp), part.wanted, rivals=part.rivals)
            for part in (cache[start : start + chunk] for start in range(0, len(cache), chunk))
        ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


@torch.no_grad()
def likelier(
    model: MlpSwapForCausalLM, mlp: FactMLP, cache: PromptCache, than: Int[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Whether each prompt's wanted token is strictly likelier than the token `than`."""
    direction = model.head_direction(cache.rows.mixed(mlp))
    table = model.get_output_embeddings().weight
    return (direction * table[cache.wanted]).sum(dim=1) > (direction * table[than]).sum(dim=1)


@torch.no_grad()
def top(
    model: MlpSwapForCausalLM, mlp: FactMLP, cache: PromptCache, k: int = 5
) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
    """The k likeliest tokens of each prompt, best first, and their logits."""
    best = model.head(cache.rows.mixed(mlp)).topk(k, dim=1)
    return best.indices, best.values


def mean_over_facts(
    outcomes: Bool[Tensor, " n"], facts: Int[Tensor, " n"], among: Int[Tensor, " m"] | None = None
) -> float:
    """Mean over facts (those in `among`, if given) of each fact's mean outcome; NaN without any fact."""
    if among is not None:
        chosen = torch.isin(facts, among.to(facts.device))
        outcomes, facts = outcomes[chosen], facts[chosen]
    if not len(facts):
        return math.nan
    _, place, counts = torch.unique(facts, return_inverse=True, return_counts=True)
    hits = torch.zeros(len(counts), dtype=torch.float64, device=facts.device)
    hits.index_add_(0, place, outcomes.double())
    return float((hits / counts).mean())


def score_harmonic(efficacy: float, paraphrase: float, specificity: float) -> float:
    """3 / (1/e + 1/p + 1/s); 0 if any is 0, NaN if any is NaN."""
    scores = (efficacy, paraphrase, specificity)
    if any(map(math.isnan, scores)):
        return math.nan
    return 0.0 if 0 in scores else 3 / sum(1 / score for score in scores)


def score_geometric(efficacy: float, paraphrase: float, specificity: float) -> float:
    """(e p s)^(1/3); 0 if any is 0, NaN if any is NaN."""
    return (efficacy * paraphrase * specificity) ** (1 / 3)


@dataclass(frozen=True, eq=False)
class Probes:
    """The prompts that score one set of edits, by the name of the score.

    `old` is the token of the old value for each row of "efficacy".
    """

    caches: Mapping[str, PromptCache]
    old: Int[Tensor, " N"]

    @property
    def changed(self) -> Bool[Tensor, " N"]:
        """Which rows of "efficacy" ask for another value than the old one."""
        return self.caches["efficacy"].wanted != self.old

    @classmethod
    def of(
        cls,
        model: MlpSwapForCausalLM,
        task: Task,
        after: FactSet,
        *,
        altered: Int[Tensor, " N"],
        preserved: Int[Tensor, " P"],
        edit_template: Int[Tensor, " F"],
        names: Sequence[str] = CORE,
    ) -> "Probes":
        """Prompts of a task whose facts `altered` become those of `after`.

        `edit_template[i]` is the template of fact i's edit prompt; all other trained ones are its paraphrases.
        Only the caches of `names` are made: "specificity_paraphrase" has as many rows as all others together.
        """
        targets = task.target_ids(after)
        caches = {}
        for name in names:
            facts = preserved if name.startswith("specificity") else altered
            table = task.held_out if name == "paraphrase_unseen" else task.table
            if table is None:
                raise ConfigError(f"{name} needs templates that were never trained: the task has none")
            fact, template = facts, edit_template[facts]
            if "paraphrase" in name:
                fact, template = torch.cartesian_prod(facts, torch.arange(len(table))).T
                if table is task.table:
                    other = template != edit_template[fact]
                    fact, template = fact[other], template[other]
            caches[name] = PromptCache.of(
                model, task.batch(fact, template, targets=targets, table=table), fact
            )
        return cls(caches, task.target_ids(task.facts)[altered].to(model.device))

    def with_rivals(self, model: MlpSwapForCausalLM) -> "Probes":
        """The same, with the preserved facts, whose answers most fact MLPs leave alone, made for many of them."""
        with evaluating(model):
            ready = self.caches["specificity"].with_rivals(model)
        return Probes(dict(self.caches) | {"specificity": ready}, self.old)

    def sample(self, preserved: int, generator: torch.Generator) -> "Probes":
        """The core probes with one paraphrase of each altered fact and at most `preserved` preserved facts."""
        paraphrase, specificity = self.caches["paraphrase"], self.caches["specificity"]
        shuffled = torch.randperm(len(paraphrase), generator=generator).to(paraphrase.facts.device)
        _, groups = torch.unique(paraphrase.facts, return_inverse=True)
        one = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=torch.long, device=groups.device)
        one[groups[shuffled]] = shuffled
        some = torch.randperm(len(specificity), generator=generator)[:preserved].to(specificity.facts.device)
        caches = {"efficacy": self.caches["efficacy"], "paraphrase": paraphrase[one.sort().values]}
        return Probes(caches | {"specificity": specificity[some.sort().values]}, self.old)


def outcomes(
    model: MlpSwapForCausalLM, mlp: FactMLP, probes: Probes, names: Sequence[str] = CORE
) -> dict[str, Bool[Tensor, " n"]]:
    """What happened at each prompt of the named probes, and along with "efficacy" the "success" of its changed rows."""
    found = {name: correct(model, mlp, probes.caches[name]) for name in names}
    if "efficacy" in names:
        changed = probes.changed
        found["success"] = likelier(model, mlp, probes.caches["efficacy"][changed], probes.old[changed])
    return found


def scores(
    probes: Probes, found: Mapping[str, Bool[Tensor, " n"]], among: Int[Tensor, " m"] | None = None
) -> dict[str, float]:
    """Means over facts, of all or of those in `among`, with both scores. What has no fact is NaN, never 0."""
    facts = {name: cache.facts for name, cache in probes.caches.items()}
    facts["success"] = facts["efficacy"][probes.changed]
    means = {name: mean_over_facts(outcome, facts[name], among) for name, outcome in found.items()}
    three = [means[name] for name in CORE]
    return means | {"score_harmonic": score_harmonic(*three), "score_geometric": score_geometric(*three)}


@dataclass(frozen=True, eq=False)
class LanguageCache:
    """Rows at every position that predicts no value, the token wanted there, and whether that is a word."""

    rows: Rows
    wanted: Int[Tensor, " n"]
    word: Bool[Tensor, " n"]

    @classmethod
    def of(
        cls,
        model: MlpSwapForCausalLM,
        batch: Batch,
        key_ids: Int[Tensor, " F"],
        *,
        chunk: int = 256,
    ) -> "LanguageCache":
        """From prompts of a task with a label at every position."""
        parts = []
        with evaluating(model):
            for start in range(0, len(batch), chunk):
                part = batch.rows(start, start + chunk).to(model.device)
                labelled = part.labels != IGNORE
                labelled[:, -1] = False  # (B, T): the value
                a = model.attend(part.input_ids, part.attention_mask).a[labelled]
                parts.append((rows_of(model, a), part.labels[labelled]))
        wanted = torch.cat([labels for _, labels in parts])
        return cls(
            Rows.cat([rows for rows, _ in parts]), wanted, ~torch.isin(wanted, key_ids.to(wanted.device))
        )


@torch.no_grad()
def language_losses(model: MlpSwapForCausalLM, mlp: FactMLP, cache: LanguageCache) -> Float[Tensor, " n"]:
    """Cross-entropy of each token of the cache with `mlp` in place, in nats."""
    return token_nll(model, cache.rows.mixed(mlp), cache.wanted).double()


def nonfact_change(
    cache: LanguageCache, before: Float[Tensor, " n"], after: Float[Tensor, " n"]
) -> dict[str, float]:
    """Mean `language_losses` of the tokens that are no values, before and after an edit, and their ratios."""
    change = {}
    for name, chosen in (("nonfact", torch.ones_like(cache.word)), ("nonfact_word", cache.word)):
        old, new = (float(loss[chosen].mean()) for loss in (before, after))
        change[f"{name}_ce_before"], change[f"{name}_ce_after"] = old, new
        change[f"{name}_ce_ratio"], change[f"{name}_ppl_ratio"] = new / old, float(np.exp(new - old))
    return change
