"""Configuration: every mistake is named with its key, and help comes without heavy imports."""

import math
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlpswap_baselines.ft import FineTuningConfig
from mlpswap_baselines.memit import MemitConfig
from mlpswap_baselines.rome import RomeConfig, RomeOriginal

from mlpswap.config import build_options, describe, find_config, load_config, option, to_plain, to_yaml
from mlpswap.editing.editor import EditConfig, ProtocolConfig
from mlpswap.editing.residuals import ResidualOptions
from mlpswap.editing.swap import SwapConfig
from mlpswap.errors import ConfigError
from mlpswap.training.config import TrainConfig
from tests.plug_ins import Own


@dataclass
class Inner:
    width: int = option(3, "how wide")
    names: list[str] = option(factory=list, help="names")


@dataclass
class Outer:
    seed: int = option(0, "seed")
    share: float | None = option(None, "share")
    extra: dict[str, Any] = option(factory=dict, help="anything")
    inner: Inner = field(default_factory=Inner)


def test_file_and_overrides_are_merged_in_order(tmp_path):
    path = tmp_path / "a b ü.yaml"
    path.write_text("seed: 1\ninner: {width: 5}\nextra: {a: {b: 1}}\n")
    config = load_config(Outer, path, ["seed=2", "inner.names=[x,y]", "extra.c=null"])
    assert to_plain(config) == {
        "seed": 2,
        "share": None,
        "extra": {"a": {"b": 1}, "c": None},
        "inner": {"width": 5, "names": ["x", "y"]},
    }
    assert "width: 5" in to_yaml(config)


def test_a_free_mapping_is_replaced_and_its_keys_can_be_set(tmp_path):
    """`mlp={construction: hebbian}` on a preset with another construction must not keep that one's options."""
    path = tmp_path / "a.yaml"
    path.write_text("extra: {construction: gd, noise: 1}\n")
    assert load_config(Outer, path, ["extra={construction: hebbian}"]).extra == {"construction": "hebbian"}
    assert load_config(Outer, path, ["extra.noise=2"]).extra == {"construction": "gd", "noise": 2}
    assert load_config(TrainConfig, None, ["mlp={construction: gd}"]).mlp == {"construction": "gd"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sed: 1\n", ["sed", "seed"]),
        ("inner: {wide: 1}\n", ["inner.wide"]),
        ("seed: many\n", ["seed", "many"]),
        ("seed: 1\nseed: 2\n", ["duplicate", "seed"]),
        ("- 1\n", ["mapping"]),
        ("seed: [1\n", ["bad.yaml"]),
        (1000 * "a" + ": 1\n", ["aaa ..."]),
    ],
)
def test_a_bad_file_is_refused_with_file_and_key(tmp_path, text, named):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path)
    message = str(caught.value)
    assert "\n" not in message
    assert "did you mean 'seed'" not in message or text.startswith("sed")  # a key is no hint for itself
    assert "bad.yaml" in message
    for word in named:
        assert word.lower() in message.lower()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlp: [1, 2]", r"mlp: expected a mapping, as in {...}, found \[1, 2\]"),
        ("training: 3", "training: expected a mapping.*found 3"),
        ("facts: [a]", r"facts: expected a mapping.*found \['a'\]"),
        ("swap: 3", "swap: expected a mapping.*found 3"),
        ("swap: {constructions: 3}", r"swap.constructions: expected a list, as in \[...\], found 3"),
        ("swap: {constructions: {a: 1}}", "swap.constructions: expected a list.*found {'a': 1}"),
        ("swap: {constructions: [{construction: gd}, 3]}", r"swap.constructions\[1\]: expected a mapping.*found 3"),
        ("host:", "host: expected a mapping.*found None"),
        ("seed: {a: 1}", "key seed"),
        ("report: 2", "report: expected true or false, found 2"),
        ("host: {mixture: 1}", "host.mixture: expected true or false, found 1"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_shape_is_named_by_its_key(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=f"bad.yaml: .*{message}"):
        load_config(TrainConfig, path)
    if text != "host:":
        key, _, value = text.partition(": ")
        with pytest.raises(ConfigError, match=f"override '{key}=.*': .*{message}"):
            load_config(TrainConfig, None, [f"{key}={value}"])


@given(st.text().filter(lambda text: text != "???"))
def test_texts_are_taken_as_they_stand(text):
    @dataclass
    class Prompt:
        prompt: str = ""

    assert load_config(Prompt, None, [], {"prompt": text}).prompt == text


def test_a_file_that_is_not_utf8_is_refused_with_the_byte(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("seed: 1 # f\xfcnf\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="byte 11"):
        load_config(Outer, path)


@pytest.mark.parametrize("word", ["seed", "=3", "--seed=3"])
def test_an_override_needs_a_key_and_a_value(word):
    with pytest.raises(ConfigError, match="key=value"):
        load_config(Outer, None, [word])


def test_a_missing_file_and_an_unknown_preset_are_named():
    with pytest.raises(ConfigError, match="no/such.yaml"):
        find_config("no/such.yaml")
    with pytest.raises(ConfigError, match="did you mean 'books_tiny'"):
        find_config("book_tiny")


def test_options_of_a_plug_in_are_checked_in_a_second_step():
    assert build_options(Inner, {"width": 4}, "editor x") == Inner(4)
    with pytest.raises(ConfigError, match="editor x.*depth"):
        build_options(Inner, {"depth": 4}, "editor x")


@pytest.mark.parametrize("options", [{"options": [1]}, {"options": 3}, {"options": {"a": object()}}])
def test_options_that_omegaconf_stumbles_over_are_refused_in_a_sentence(options):
    with pytest.raises(ConfigError, match="^editor swap: "):
        build_options(SwapConfig, options, "editor swap")


def test_a_number_is_no_truth_value():
    with pytest.raises(ConfigError, match="^editor memit: cache: expected true or false, found 2$"):
        build_options(MemitConfig, {"cache": 2}, "editor memit")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RomeConfig(lr=math.nan), "lr = nan: expected a finite number"),
        (lambda: RomeConfig(steps=2.5), "steps = 2.5: expected a whole number"),
        (lambda: RomeConfig(steps=True), "steps = True: expected a whole number"),
        (lambda: RomeConfig(early_stop="0.1"), "early_stop = '0.1': expected a finite number"),
        (lambda: RomeOriginal(layers=[1], steps=None), "steps = None: expected a whole number"),
        (lambda: MemitConfig(cache=1), "cache = 1: expected true or false"),
        (lambda: FineTuningConfig(clamp=math.inf), "clamp = inf: expected a finite number"),
        (lambda: SwapConfig(on_conflict=None), "on_conflict = None: expected a text"),
        (lambda: RomeConfig(protocol="original", original=5), "original = 5: expected a RomeOriginal; .*"),
        (lambda: RomeOriginal(layers="0"), "original.layers = '0': expected different layers from 0, .*"),
        (lambda: RomeOriginal(layers=[[0]]), "original.layers = .*: expected different layers from 0, .*"),
        (lambda: RomeOriginal(layers=[0.5]), "original.layers = .*: expected different layers from 0, .*"),
        (lambda: RomeOriginal(layers=[True]), "original.layers = .*: expected different layers from 0, .*"),
        (lambda: RomeOriginal(layers=[-1]), "original.layers = .*: expected different layers from 0, .*"),
        (lambda: RomeConfig(lr=10**400), "lr = 10+: expected a finite number"),
        (lambda: ResidualOptions(10, lr=math.nan), "lr = nan: expected a finite number"),
    ],
)
def test_settings_made_in_python_are_checked_like_those_of_a_file(make, message, unchecked):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        make()


def test_a_plug_ins_settings_may_have_fields_of_any_kind(unchecked):
    @dataclass(frozen=True)
    class Config(EditConfig):
        names: ClassVar[dict]
        own: Inner | None = None
        twice: int = field(init=False)

        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "twice", 2)

    assert Config(own=Inner()).twice == 2
    built = build_options(RomeConfig, {"protocol": "original", "original": {"layers": (17,)}}, "rome")
    assert built.original.layers == [17]
    again = build_options(RomeConfig, {"protocol": "original", "original": built.original}, "rome")
    assert again == built


def test_settings_may_be_one_of_several_types(unchecked):
    """Whatever a union holds besides null is the plug-in's own affair; one with null alone is checked."""

    @dataclass(frozen=True)
    class Config(EditConfig):
        several: Inner | str = "none"
        either: Optional[Inner] = None  # noqa: UP045

    assert Config(several=Inner()).several == Inner()
    assert build_options(Config, {"several": "some"}, "plug-in").several == "some"
    with pytest.raises(ConfigError, match="either = 3: expected a Inner"):
        Config(either=3)


@pytest.mark.parametrize("annotation", ["Nowhere", "Nowhere | None", "math.Nowhere", "not an expression"])
def test_types_that_only_a_type_checker_can_read_are_left_alone(unchecked, annotation):
    """The settings beside them that come from mlpswap are still checked, and all are listed."""
    Config = make_dataclass(
        "Config", [("own", annotation, option(1, "help"))], bases=(MemitConfig,), frozen=True
    )
    assert Config(own="anything").own == "anything"
    with pytest.raises(ConfigError, match="lam = nan: expected a finite number"):
        Config(lam=math.nan)
    assert ("own", annotation.removeprefix("math."), 1, "help") in list(describe(Config))


def test_an_original_protocols_settings_are_an_object_of_any_plug_ins_editor(unchecked):
    @dataclass(frozen=True)
    class Config(ProtocolConfig):
        several: list = field(default_factory=list)
        twice: int = field(init=False)

    with pytest.raises(ConfigError, match=r"original = \{'layers': \[1\]\}: expected an object"):
        Config(protocol="original", original={"layers": [1]})
    assert Config(protocol="original", original=RomeOriginal(layers=[1])).several == []
    with pytest.raises(ConfigError, match="several is a setting of the single-layer protocol"):
        Config(protocol="original", original=RomeOriginal(layers=[1]), several=[1])


@pytest.mark.parametrize("layers", [range(1, 3), (1, 2), list(np.arange(1, 3)), np.arange(1, 3), {1, 2}])
def test_layers_may_come_from_anything_that_holds_whole_numbers(unchecked, layers):
    assert sorted(RomeOriginal(layers=layers).layers) == [1, 2]


def test_truth_values_of_an_original_protocol_are_checked():
    for cache in (2, "yes", 0):
        with pytest.raises(
            ConfigError, match=f"memit: original.cache: expected true or false, found {cache!r}"
        ):
            build_options(
                MemitConfig, {"protocol": "original", "original": {"layers": [0], "cache": cache}}, "memit"
            )


def test_settings_made_in_python_may_be_numpys(unchecked):
    assert RomeConfig(steps=np.int64(10), lr=np.float32(0.5), early_stop=None).residual_options.steps == 10


def test_whatever_a_plug_in_says_against_its_options_is_a_sentence():
    with pytest.raises(ConfigError, match="editor own: .*no size is right"):
        build_options(Own.Config, {}, "editor own")


def test_every_field_has_help():
    assert all(text for *_, text in describe(TrainConfig))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("task=poems", "task"),
        ("training.steps=0", "training.steps"),
        ("training.p_nonvalue=0", "training.p_nonvalue"),
        ("training.p_noise=1.5", "training.p_noise"),
        ("training.lr=-1", "training.lr"),
        ("training.clip=-1", "training.clip"),
        ("training.final_lr=-3", "training.final_lr"),
        ("training.weight_decay=-5", "training.weight_decay"),
        ("training.early_stop=2", "training.early_stop"),
        ("threads=100000", "threads"),
        ("host.n_embd=-4", "host.n_embd"),
        ("host.logit_scale=0", "host.logit_scale"),
        ("facts.path=''", "facts.path"),
        ("wandb.mode=maybe", "wandb.mode"),
        ("facts.count=0", "facts.count"),
        ("threads=0", "threads"),
        ("task=ssfr", "facts.count"),
        ("training.mixed_precision=fp4", "training.mixed_precision"),
    ],
)
def test_values_out_of_range_are_refused_by_key(override, named):
    with pytest.raises(ConfigError, match=named):
        load_config(TrainConfig, None, [override])


def test_the_command_line_needs_no_torch_for_help():
    """`--help` must answer at once; torch and transformers take seconds to import."""
    code = (
        "import sys, contextlib, io, mlpswap.cli as cli\n"
        "for verb in cli.VERBS:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        cli.main([verb, '--help'])\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'wandb', 'omegaconf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
