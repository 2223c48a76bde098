"""Table 1: what each row minimizes, that every row resumes exactly, and that a row of one's own is one like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import Stop, StopAt, ends_alike, halves
from torch import Tensor

from advibp import Box, Method, Recipe, UserError, attacks, cli, data, nets, objectives, train
from advibp.execution.seeds import mix, seed_everything
from advibp.methods import METHODS, WEIGHTINGS, method_at
from advibp.runs import Run, resuming
from advibp.runs.training_display import Silent
from advibp.storage.run_folder import RunFolder
from advibp.training import Training
from advibp.weighting import Moments

SHORT: dict[str, Any] = {"epochs": 3, "batch_size": 20, "eps": 0.1, "ramp": 1, "stage_epochs": 1, "attack_steps": 2}
MINE = Method(name="mine", description="PGD and IBP", lower=objectives.pgd, upper=objectives.ibp, weighting="moments")


def recipe_of(method: str, **options: Any) -> Recipe:
    row = METHODS[method]
    short = {key: value for key, value in SHORT.items() if key != "attack_steps" or key in row.recipe_keys}
    short |= {"taps_layers": 3} if "taps_layers" in row.recipe_keys else {}
    warm_up = {"warmup_natural": 0, "warmup_adversarial": 0}
    return Recipe.load(**{"data": "halves", "net": "FC", "method": method, **short, **warm_up, **options})


def trained(out: Path | None, recipe: Recipe, show: Silent | None = None, **options: Any) -> Run:
    net = nets.build("Conv 3 2x2+1, FC 8", (1, 4, 4), 2, seed=3)
    return train(net, halves(), recipe=recipe, out=out, show=show or Silent(), **options)


def test_the_table_reads_as_the_paper_prints_it() -> None:
    """Rows by the names the paper's readers know, and its check marks."""
    first = ["standard", "fgsm", "rs-fgsm", "pgd", "colt", "diffai", "mip", "crown-ibp", "ibp", "shi-ibp"]
    since = ["sabr", "taps", "staps", "cc-ibp", "mtl-ibp", "exp-ibp"]
    assert list(METHODS) == [*first, *since, "fixed", "advibp", "advcrown-ibp", "advsabr", "advtaps", "advstaps"]
    assert {name for name, row in METHODS.items() if not row.upper_is_bound} == {*since, *list(METHODS)[-3:]}
    empirical = {name for name, row in METHODS.items() if row.properties.empirical}
    provable = {name for name, row in METHODS.items() if row.properties.provable}
    assert {"fgsm", "rs-fgsm", "pgd", "colt", "advibp"} <= empirical
    assert not {"standard", "diffai", "crown-ibp", "ibp"} & empirical
    assert {"colt", "diffai", "crown-ibp", "ibp", "advibp"} <= provable
    assert not {"standard", "fgsm", "rs-fgsm", "pgd"} & provable
    assert METHODS["advibp"].properties.no_tuning
    assert METHODS["ibp"].properties.no_tuning is METHODS["crown-ibp"].properties.no_tuning is False


@pytest.mark.parametrize("method", METHODS)
def test_every_row_resumes_exactly(method: str, tmp_path: Path) -> None:
    recipe = recipe_of(method)
    undisturbed = trained(None, recipe)
    last = len(undisturbed.history)
    for at in (StopAt(step=4), StopAt(epoch=last - 1)):
        out = tmp_path / f"{at.at_step}-{at.at_epoch}"
        with pytest.raises(Stop):
            trained(out, recipe, at)
        assert ends_alike(undisturbed, trained(out, recipe, resume=True))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam"])
def test_averaged_weights_and_other_optimizers_resume_exactly(optimizer: str, tmp_path: Path) -> None:
    """With BatchNorm, whose population statistics are computed again, and with the terms beside the losses."""
    options = {"swa_start": 1, "swa_every": 2, "shi": 0.5, "clean_share": 0.3, "ramp": 2, "select": "best"}
    recipe = recipe_of("advsabr", optimizer=optimizer, weight_decay=0.01, **options)

    def run(out: Path | None, show: Silent | None = None, **more: Any) -> Run:
        net = nets.build("Conv 3 2x2+1 BN, FC 8 BN", (1, 4, 4), 2, seed=3)
        return train(net, halves(), recipe=recipe, out=out, show=show or Silent(), **more)

    undisturbed = run(None)
    for at in (StopAt(step=8), StopAt(epoch=2)):
        out = tmp_path / f"{at.at_step}-{at.at_epoch}"
        with pytest.raises(Stop):
            run(out, at)
        assert ends_alike(undisturbed, run(out, resume=True))


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if not row.upper_is_bound])
def test_approximate_rows_train_batchnorm_and_residual_networks(method: str) -> None:
    """In every phase, with finite losses; the metrics say that the upper loss is no bound."""
    net = nets.build("Conv 3 2x2+1 BN, Res 3+1 BN, FC 8 BN", (1, 4, 4), 2, seed=3)
    options = {"taps_layers": 4} if "taps_layers" in METHODS[method].recipe_keys else {}
    run = train(net, halves(), recipe=recipe_of(method, **options), show=Silent())
    assert all(metrics["upper_is_bound"] is False for metrics in run.history)
    assert run.summary["upper_is_bound"] is False


def test_approximate_rows_train_on_tables_with_ranges() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(90, 3, generator=generator) * torch.tensor([1.0, 50.0, 1000.0])
    y = (x[:, 0] > 0.5).long()
    table = data.from_tensors(
        x, y, x[:20], y[:20], validation=30, images=False, input_range=([0.0, 0.0, None], [1.0, 50.0, None])
    )
    for method in ("sabr", "mtl-ibp", "staps"):
        options = {"eps_scale": [1.0, 10.0, 0.0], "normalize": True, "eps": 0.05}
        options |= {"taps_layers": 2} if method == "staps" else {}
        net = nets.build("FC 8, FC 6", (3,), 2, mean=[0.5, 25.0, 500.0], std=[0.3, 15.0, 300.0], seed=3)
        run = train(net, table, recipe=recipe_of(method, **options), show=Silent())
        assert run.history[-1]["phase"] == "full"


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_every_weighting_resumes_exactly(weighting: str, tmp_path: Path) -> None:
    recipe = recipe_of("advibp", weighting=weighting)
    with pytest.raises(Stop):
        trained(tmp_path / "run", recipe, StopAt(step=4))
    resumed = trained(tmp_path / "run", recipe, resume=True)
    assert ends_alike(trained(None, recipe), resumed)
    assert "kappa_lower" in resumed.history[-1]


def test_the_fixed_row_is_the_sum_of_two_losses() -> None:
    """Against a loop of its own, ten lines that know nothing of methods, passes and weightings."""
    training = Training(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), recipe_of("fixed", clip=None, lr=0.01))
    net = nets.build("FC 8", (1, 4, 4), 2, seed=1)
    adam, step = torch.optim.Adam(net.parameters(), lr=0.01), 0
    for epoch in range(3):
        for x, y in training.feed.batches(epoch, 0, training.steps_per_epoch):
            eps = 0.1 * min(1.0, step / training.steps_per_epoch)
            seed_everything(mix(training.recipe.seed, 1, step), torch.device("cpu"))
            adversarial = F.cross_entropy(net(attacks.linf_fgsm_random(net, x, y, eps)), y)
            abstract = F.cross_entropy(-net(Box.ball(x, eps)).lower_margins(y), y)
            for group in adam.param_groups:  # linear to 0 from the end of the ramp on
                group["lr"] = 0.01 * min(1.0, (3 - step / training.steps_per_epoch) / 2)
            adam.zero_grad()
            (adversarial + abstract).backward()
            adam.step()
            step += 1
    while not training.finished:
        list(training.run_epoch())
    for ours, theirs in zip(training.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kappa", "end"), [(None, 0.5), (0.0, 0.0), (0.2, 0.2)])
def test_scheduled_weights_go_from_the_regular_loss_to_kappa(kappa: float | None, end: float) -> None:
    training = Training(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), recipe_of("ibp", kappa=kappa, ramp=2))
    steps = [step for _ in range(3) for step in training.run_epoch()]
    found = [step.weights.lower for step in steps if step.weights]
    assert found[0] == 1
    assert found[-1] == pytest.approx(end)
    assert found == sorted(found, reverse=True)
    assert all(step.weights and step.weights.lower + step.weights.upper == pytest.approx(1) for step in steps)


@pytest.mark.parametrize("scope", ["all", "first", "last"])
def test_the_scope_of_the_moments(scope: str) -> None:
    training = Training(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), recipe_of("advibp", scope=scope))
    for _ in range(2):
        list(training.run_epoch())
    sizes = [p.numel() for p in training.net.parameters()]
    assert isinstance(training.weighting, Moments)
    assert training.weighting.m is not None
    assert training.weighting.m.shape[1] == {"all": sum(sizes), "first": sizes[0], "last": sizes[-1]}[scope]


# ------------------------------------------------------------------------------------ a row of one's own


def test_a_method_of_ones_own_goes_where_a_name_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {**SHORT, "warmup_natural": 0, "warmup_adversarial": 0, "show": Silent()}

    def run(out: Path | None = None, **more: Any) -> Run:
        net = nets.build("FC 8", (1, 4, 4), 2, seed=3)
        return train(net, halves(), method=MINE, out=out, **{**options, **more})

    undisturbed = run()
    assert undisturbed.recipe.method == "python:mine"
    with pytest.raises(Stop):
        run(tmp_path / "run", show=StopAt(step=4))
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True))
    with pytest.raises(UserError, match="is a user's; pass the Method as `method`"):
        train(nets.build("FC 8", (1, 4, 4), 2), halves(), out=tmp_path / "run", resume=True, recipe=undisturbed.recipe)


def test_a_weighting_of_ones_own() -> None:
    class Mine(Moments):
        def weights(self, *args: Any, gradients: Tensor | None = None, **kwargs: Any) -> Any:
            assert gradients is not None
            assert gradients.shape[0] == 2
            return super().weights(*args, **kwargs)

    method = Method(description="mine", lower=objectives.regular, upper=objectives.ibp, weighting=Mine)
    net = nets.build("FC 8", (1, 4, 4), 2)
    assert train(net, halves(), method=method, show=Silent(), epochs=4, eps=0.1).history[-1]["kappa_upper"] > 0


def test_a_method_by_its_place_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from advibp import Method, objectives\n"
        "BOTH = Method(description='both', lower=objectives.regular, upper=objectives.ibp)\n"
        "number = 3\n"
    )
    assert method_at(f"{file}:BOTH").upper is objectives.ibp
    with pytest.raises(UserError, match="did you mean BOTH"):
        method_at(f"{file}:BOHT")
    with pytest.raises(UserError, match="must hold an advibp"):
        method_at(f"{file}:number")


def test_a_method_by_its_place_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its defaults count, a folder alone can't make it run, and what is told to be typed goes on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from advibp import Method, objectives\n"
        "recipe = {'warmup_adversarial': 0, 'lr': 0.01}\n"
        "M = Method(description='m', lower=objectives.regular, upper=objectives.ibp, recipe=recipe)\n"
    )
    words = ["train", "mnist", "FC 8", "--method", "mine.py:M", "--limit", "200", "--validation", "20", "--epochs", "3"]
    words += ["--eps", "0.1", "--batch-size", "50", "--threads", "1", "--out", "run"]
    assert cli.main(words) == 0
    recipe = resuming.recipe_of(RunFolder(tmp_path / "run"))
    assert (recipe.method, recipe.lr, recipe.warmup_adversarial, recipe.warmup_natural) == ("mine.py:M", 0.01, 0, "4%")
    assert "--method mine.py:M" in RunFolder(tmp_path / "run").summary()["command"]
    assert cli.main(["certify", "run", "--eps", "0.1", "--limit", "5", "--attack-steps", "2"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--resume", "--out", "run"]) == 2
    assert "add --method mine.py:M" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "--method", "mine.py:M", "--out", "run"]) == 0
    assert cli.main(["train", "--resume", "--method", "ibp", "--out", "run"]) == 2
    assert "was started with method = mine.py:M, not ibp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--method crown-ibp --beta 1", "--by ibp crown-ibp"),
        ("--method mip", "--by ibp alpha-crown"),
        ("", "--eps 0.1\n"),
    ],
)
def test_the_next_command_names_the_verifier_it_was_trained_for(
    options: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = "--limit 100 --validation 20 --epochs 3 --ramp 1 --eps 0.1 --batch-size 50 --threads 1 --out run"
    assert cli.main(["train", "mnist", "FC 8", *short.split(), *options.split()]) == 0
    assert said in capsys.readouterr().out


def test_a_run_of_an_older_version_is_opened(tmp_path: Path) -> None:
    """With another name of the method, and another default of a key that it does not read."""
    trained(tmp_path / "run", recipe_of("rs-fgsm"))
    file = tmp_path / "run" / "recipe.yaml"
    file.write_text(
        file.read_text().replace('"rs-fgsm"', '"fgsm-random"').replace("projections: 16", "projections: 32")
    )
    recipe = resuming.recipe_of(RunFolder(tmp_path / "run"))
    assert (recipe.method, recipe.projections) == ("rs-fgsm", 32)


# ------------------------------------------------------------------------------------ what can't be


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("advibp", {"attack_steps": 3}, "advibp does not use attack_steps; .* pgd"),
        ("advibp", {"kappa": 0.5}, "kappa applies to fixed and scheduled weights, not to moments"),
        ("fixed", {"scope": "first"}, "scope applies to the weighting moments"),
        ("shi-ibp", {"weighting": "moments"}, "weighting applies to methods with two losses, and shi-ibp has one"),
        ("pgd", {"kappa": 0.5}, "kappa applies to methods with two losses"),
        ("ibp", {"stages": 1}, "ibp has no layer-wise stages; .* colt, fixed, advibp, advcrown-ibp or advsabr"),
        ("taps", {"stages": 1}, "taps has no layer-wise stages"),
        ("advstaps", {"stages": "all"}, "advstaps has no layer-wise stages"),
        ("ibp", {"sabr_lambda": 0.5}, "ibp does not use sabr_lambda; .* sabr, staps, advsabr or advstaps"),
        ("sabr", {"alpha": 0.1}, "sabr does not use alpha; .* cc-ibp, mtl-ibp or exp-ibp"),
        ("advsabr", {"attack_eps_factor": 2}, "advsabr does not use attack_eps_factor"),
        ("mtl-ibp", {"kappa": 0.5}, "kappa applies to methods with two losses, and mtl-ibp has one"),
        ("shi-ibp", {"shi": 0.5}, "set shi to 0"),
        ("advsabr", {"stages": 1, "swa_start": 1}, "no layer-wise stages"),
        ("sabr", {"swa_start": 60}, "swa_start is 60, but must be below epochs"),
        ("ibp", {"domain": "deepz"}, "ibp does not use domain; .* diffai"),
    ],
)
def test_what_has_no_meaning_is_refused_with_a_reason(method: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Recipe.load(method=method, **options)


@pytest.mark.parametrize("method", ["crown-ibp", "advcrown-ibp", "colt", "diffai"])
def test_rows_that_cannot_bound_batchnorm_say_so(method: str) -> None:
    net = nets.build("FC 8 BN", (1, 4, 4), 2)
    with pytest.raises(UserError, match=f"{method} can't bound BatchNorm in training"):
        Training(net, halves(), recipe_of(method)).check()


def test_boxes_bound_batchnorm_whatever_the_row() -> None:
    net = nets.build("FC 8 BN", (1, 4, 4), 2)
    Training(net, halves(), recipe_of("diffai", domain="box")).check()


def test_a_method_is_made_of_something() -> None:
    with pytest.raises(UserError, match="a lower objective, an upper one, or both"):
        Method(description="nothing")
    with pytest.raises(UserError, match="no weighting 'gowal'"):
        Method(description="odd", lower=objectives.regular, upper=objectives.ibp, weighting="gowal")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (lambda: Method(description="x", lower="ibp"), "must be functions, such as"),  # type: ignore[arg-type]
        (lambda: Method(description="x", lower=objectives.pgd, latent="boxes"), "latent must be None"),  # type: ignore[arg-type]
        (
            lambda: Method(description="x", lower=objectives.pgd, upper=objectives.ibp, latent="zonotope"),
            "only without an upper",
        ),
        (lambda: Method(description="x", lower=lambda net, inputs, y, *a: net(inputs.x).sum()), "returned Tensor"),
        (
            lambda: Method(description="x", lower=objectives.pgd, upper=objectives.ibp, weighting=lambda a: Moments(a)),
            "without arguments",
        ),
    ],
)
def test_mistakes_in_a_method_of_ones_own(method: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(nets.build("FC 8", (1, 4, 4), 2), halves(), method=method(), show=Silent(), epochs=4, eps=0.1)


def test_terms_for_relus_need_some() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for method in ("mip", "shi-ibp"):
        with pytest.raises(UserError, match="has a regularizer for ReLUs"):
            Training(net, halves(), recipe_of(method)).check()
        Training(net, halves(), recipe_of(method, regularizer=0)).check()


@pytest.mark.parametrize("method", METHODS)
def test_parts_of_a_batch_are_refused_where_they_would_matter(method: str) -> None:
    training = Training(nets.build("FC 8", (1, 4, 4), 2), halves(), recipe_of(method, at_once=7))
    if METHODS[method].per_image and not training.recipe.shi:
        training.check()
    else:
        with pytest.raises(UserError, match=r"depends? on the whole batch"):
            training.check()


def test_what_stages_can_not_do_is_found_before_they_begin() -> None:
    """A zonotope that meets max pooling behind its cut, and linear bounds of what has been recorded."""
    net = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 2, 2), torch.nn.ReLU(), torch.nn.Conv2d(2, 2, 2), torch.nn.MaxPool2d(2)),
        *(torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2, 2)),
    )
    with pytest.raises(UserError, match="max_pool2d"):
        Training(net, halves(), recipe_of("colt", stages=1)).check()


# ------------------------------------------------------------------------------------ another method, another recipe


def test_another_method_brings_its_own_defaults() -> None:
    """And what was changed stays changed."""
    start = Recipe.load(lr=0.123)
    colt = start.changed(method="colt")
    assert (colt.lr, colt.stages, colt.regularizer) == (0.123, "all", METHODS["colt"].recipe["regularizer"])
    assert colt.changed(method="advibp") == start
    assert start.changed(seed=3) == Recipe.load(lr=0.123, seed=3)


def test_a_recipe_file_wins_over_a_method_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("lr: 0.001\nepochs: 4\n")
    mine = Method(description="x", lower=objectives.regular, recipe={"lr": 0.5, "eps": 0.123})
    run = train(nets.build("FC 8", (1, 4, 4), 2), halves(), recipe=tmp_path / "f.yaml", method=mine, show=Silent())
    assert (run.recipe.lr, run.recipe.eps, run.recipe.epochs) == (0.001, 0.123, 4)


def test_without_an_attack_none_is_strong() -> None:
    """Moments on the regular loss: a conflict is decided for the bound, whatever c_max."""
    training = Training(
        nets.build("FC 8", (1, 4, 4), 2, seed=1),
        halves(),
        recipe_of("ibp", weighting="moments", c_max=9, eps=0.3, epochs=6),
    )
    branches = {step.weights.branch for _ in range(6) for step in training.run_epoch() if step.weights}
    assert "lower" not in branches
    assert "upper" in branches
