"""The dial in a notebook, as Python sees it. (web/e2e/jupyter.test.ts turns it in a real JupyterLab.)"""

import base64
import json
import os
import pickle

import numpy as np
import pytest

pytest.importorskip("anywidget")
traitlets = pytest.importorskip("traitlets")
datasets = pytest.importorskip("sklearn.datasets")

from afterfit import _afterfit  # noqa: E402
from afterfit.sklearn import KernelRidge, KernelRidgeCV, LogisticRegressionCV, PoissonRegressorCV, RidgeCV  # noqa: E402
from afterfit.widget import Dial  # noqa: E402


def shown(dial):
    return json.loads(dial.page)


def test_an_estimator_is_on_the_page_with_its_models_and_units():
    data = datasets.load_diabetes()
    model = RidgeCV(alphas=(1e-2, 1e2)).fit(data.data, data.target)
    dial = Dial(model, X=data.data, y=data.target, feature_names=data.feature_names)
    page = shown(dial)
    assert page["features"] == data.feature_names and page["path"]["type"] == "f32"
    assert len(page["rows"]) == len(model.alphas_) and len(page["samples"]) == 8
    assert page["samples"][0]["features"] == data.data[0].tolist()
    assert dial.value == pytest.approx(model.alpha_, rel=1e-12)
    assert page["rows"][page["best"]]["l2"] == dial.l2
    # (Half the squared error is what is minimized, as on the command's page.)
    losses = [row["validation_loss"] for row in page["rows"]]
    assert losses == pytest.approx((-0.5 * model.scores_.mean(axis=0)).tolist()) and page["loss"] == "half squared error"


def test_the_page_has_what_the_fit_knows_of_every_strength():
    X, y = datasets.load_iris(return_X_y=True)
    model = LogisticRegressionCV(Cs=(1e-2, 1e2), cv=3, scoring="accuracy").fit(X, y)
    page = shown(Dial(pickle.loads(pickle.dumps(model))))
    assert page == shown(Dial(model)) and page["score"] == "accuracy" and page["loss"] == "log-loss"
    scores = model.scores_.mean(axis=0)
    for row, score, confusion in zip(page["rows"], scores, page["confusions"], strict=True):
        assert row["validation_score"] == pytest.approx(score) and row["validation_accuracy"] == pytest.approx(score)
        assert 0 <= row["excess"] < 1e-6 and row["train_loss"] > 0 and row["resolved"]
        assert 0 < row["degrees_of_freedom"] < 8
        # Every row is held out of one fold.
        assert np.sum(confusion) == len(y) and np.trace(confusion) == pytest.approx(score * len(y))
    degrees = [row["degrees_of_freedom"] for row in page["rows"]]
    l2 = [row["l2"] for row in page["rows"]]
    assert degrees[int(np.argmin(l2))] > degrees[int(np.argmax(l2))]
    train = [row["train_loss"] for row in page["rows"]]
    at = page["best"]
    proba = model.predict_proba(X)[np.arange(len(y)), y]
    assert train[at] == pytest.approx(-np.log(proba).mean(), rel=1e-6)


def test_the_strength_is_a_trait_in_both_units():
    X, y = datasets.load_iris(return_X_y=True)
    model = LogisticRegressionCV(Cs=(1e-2, 1e2), cv=3).fit(X, y)
    dial = Dial(model)
    assert shown(dial)["classes"] == ["0", "1", "2"]
    seen = []
    dial.observe(lambda change: seen.append(change.new), "value")
    dial.l2 = 1 / (len(y) * 0.5)
    assert dial.value == pytest.approx(0.5) and seen == [dial.value]
    dial.value = 2.0
    assert dial.l2 == pytest.approx(1 / (len(y) * 2.0))
    for trait, wrong in [("l2", 1e9), ("value", 1e9)]:
        before = dial.l2, dial.value
        with pytest.raises(traitlets.TraitError, match="it must be from"):
            setattr(dial, trait, wrong)
        assert (dial.l2, dial.value) == pytest.approx(before)


def test_every_estimator_has_a_page():
    X = np.linspace(0, 3, 40)[:, None]
    counts = np.round(np.exp(X[:, 0])).astype(float)
    assert shown(Dial(PoissonRegressorCV().fit(X, counts)))["model"] == "poisson"


def test_a_kernel_model_says_of_each_row_what_it_predicts():
    X = np.linspace(0, 3, 40)[:, None]
    model = KernelRidgeCV(alphas=np.geomspace(1e-2, 1e1, 7), kernel="rbf").fit(X, np.sin(X[:, 0]))
    page = shown(Dial(model, X=X[3:6], y=np.sin(X[3:6, 0]), feature_names=["x"]))
    assert page["features"][39] == "row 40" and page["columns"][0]["name"] == "x"
    assert [sample["features"] for sample in page["samples"]] == X[3:6].tolist()
    nodes, count = page["path"], page["scores"]["count"]
    assert (nodes["from"], nodes["to"], nodes["count"]) == tuple(page["scores"][key] for key in ("from", "to", "count"))
    scores = np.frombuffer(base64.b64decode(page["scores"]["weights"]), "<f4").reshape(count, 3)
    # The first Chebyshev node (of the first kind), rising.
    middle, half = 0.5 * np.log(nodes["from"] * nodes["to"]), 0.5 * np.log(nodes["to"] / nodes["from"])
    l2 = float(np.exp(middle - half * np.cos(np.pi / (2 * count))))
    exact = KernelRidge(alpha=l2 * len(X), kernel="rbf", fit_intercept=model.fit_intercept).fit(X, np.sin(X[:, 0]))
    assert scores[0] == pytest.approx(exact.predict(X[3:6]), rel=1e-4)
    # Without rows there is nothing to say.
    assert shown(Dial(model))["scores"] is None


def test_a_dials_file_and_a_run_have_a_page(tmp_path):
    rows = [f"{i % 7},{i % 5},{'ab'[i % 7 > 3]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,kind", *rows]) + "\n")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        said = ["afterfit", "fit", "t.csv", "--target", "kind", "--l2", "1e-2..1:5", "--average-only", "--dial", "run.dial", "-q"]
        assert _afterfit.main(said) == 0
    finally:
        os.chdir(here)
    page = shown(Dial(tmp_path / "run.dial", title="mine"))
    assert page["title"] == "mine" and page["averaging"]["weights"] and page["path"]["count"] > 3

    torch = pytest.importorskip("torch")
    from afterfit.torch import Dial as TorchDial

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = TorchDial(model, optimizer, l2=(1e-2, 1.0))
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    dial = Dial(run)
    assert 1e-2 <= dial.l2 <= 1.0 and shown(dial)["command"] == "" and shown(dial)["rows"][0]["remaining"] > 0


def test_what_is_no_dial_is_refused():
    with pytest.raises(TypeError, match="a dial is made of"):
        Dial(42)
    X, y = datasets.load_diabetes(return_X_y=True)
    model = RidgeCV().fit(X, y)
    with pytest.raises(ValueError, match="2 names are given for 10 features"):
        Dial(model, feature_names=["a", "b"])
    with pytest.raises(ValueError, match="rows of 3 features are given for 10"):
        Dial(model, X=X[:, :3])
    with pytest.raises(ValueError, match="have 9 pixels"):
        Dial(model, image=(3, 3))
    with pytest.raises(ValueError):
        Dial("no-such.dial")
