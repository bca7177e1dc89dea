"""SSFR, synthetic sequential factual recall (arXiv 2512.00207, section 5): a key amid junk, its value as the answer."""

import torch

from mlpswap.facts import FactSet
from mlpswap.model.tokenization import Vocabulary
from mlpswap.randomness import generator
from mlpswap.tasks.base import KEY, Task, TemplateTable

TEMPLATES = 16
JUNK = 16
LENGTHS = (8, 16)  # of prefix and suffix, both ends included


def ssfr_task(facts: FactSet, seed: int) -> Task:
    """The task over `facts` (`FactSet.synthetic`): 16 pairs (prefix, suffix) of junk tokens drawn once from `seed`."""
    vocabulary = Vocabulary.ssfr(facts, junk=JUNK)
    draw = generator(seed, "ssfr templates")
    junk = torch.as_tensor(vocabulary.word_ids)
    low, high = LENGTHS

    def noise() -> list[int]:
        length = int(torch.randint(low, high + 1, (), generator=draw))
        return junk[torch.randint(len(junk), (length,), generator=draw)].tolist()

    templates = [[*noise(), KEY, *noise()] for _ in range(TEMPLATES)]
    table = TemplateTable(templates, pad_id=vocabulary.pad_id, bos_id=None, all_labels=False)
    return Task("ssfr", facts, vocabulary, table, None, language=False)
