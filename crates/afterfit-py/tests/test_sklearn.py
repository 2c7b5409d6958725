"""The estimators beside scikit-learn's own, at every strength."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn import linear_model
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_classification
from sklearn.kernel_ridge import KernelRidge as TheirKernelRidge
from sklearn.metrics import get_scorer, make_scorer, mean_squared_error
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, StratifiedKFold, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from afterfit.sklearn import (
    Folds,
    KernelRidge,
    KernelRidgeCV,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    PoissonRegressorCV,
    RegularizationPathDisplay,
    Ridge,
    RidgeCV,
    logistic_path,
    ridge_path,
)

ALPHAS = np.geomspace(1e-3, 1e3, 7)
CS = np.geomspace(1e-3, 1e2, 6)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return X * 20, y


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def two():
    return make_classification(150, 6, n_informative=4, flip_y=0.2, random_state=3)


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200, 4))
    return X, rng.poisson(np.exp(0.3 + X @ [0.5, -0.3, 0.0, 0.2])).astype(float)


@pytest.fixture(scope="module")
def weights():
    return lambda n: np.random.default_rng(5).uniform(0.1, 3.0, n)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_ridge_is_scikit_learns_at_every_strength(diabetes, weights, intercept, weighted):
    X, y = diabetes
    w = weights(len(y)) if weighted else None
    alphas, coefs, intercepts = ridge_path(X, y, alphas=ALPHAS, fit_intercept=intercept, sample_weight=w)
    for alpha, coef, b in zip(alphas, coefs, intercepts, strict=True):
        theirs = linear_model.Ridge(alpha=alpha, fit_intercept=intercept).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(coef, theirs.coef_, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(b, theirs.intercept_, rtol=1e-8, atol=1e-9)
        ours = Ridge(alpha=alpha, fit_intercept=intercept).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(ours.coef_, coef, rtol=1e-9, atol=1e-10)


def test_more_features_than_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 80)), rng.normal(size=30)
    for alpha in ALPHAS:
        theirs = linear_model.Ridge(alpha=alpha).fit(X, y)
        np.testing.assert_allclose(Ridge(alpha=alpha).fit(X, y).coef_, theirs.coef_, rtol=1e-7, atol=1e-9)


def test_several_targets_and_a_strength_for_each(diabetes):
    X, y = diabetes
    Y = np.column_stack([y, np.sqrt(y), -y])
    theirs = linear_model.Ridge(alpha=2.0).fit(X, Y)
    ours = RidgeCV(alphas=[0.5, 2.0, 8.0], cv=3).fit(X, Y)
    assert ours.coefs_.shape == (3, 3, 10)
    np.testing.assert_allclose(ours.at(2.0).coef_, theirs.coef_, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.predict(X, alpha=2.0), theirs.predict(X), rtol=1e-8)
    each = [0.5, 2.0, 8.0]
    theirs = linear_model.Ridge(alpha=each).fit(X, Y)
    np.testing.assert_allclose(Ridge(alpha=each).fit(X, Y).coef_, theirs.coef_, rtol=1e-8, atol=1e-9)
    with pytest.raises(ValueError, match="2 strengths are given for 3 targets"):
        Ridge(alpha=[1.0, 2.0]).fit(X, Y)
    # The default score is that of scikit-learn, for several targets as well.
    held = [(train, test) for train, test in KFold(3).split(X)]
    for fold, (train, test) in enumerate(held):
        for at, alpha in enumerate(ours.alphas_):
            model = linear_model.Ridge(alpha=alpha).fit(X[train], Y[train])
            expected = -mean_squared_error(Y[test], model.predict(X[test]))
            np.testing.assert_allclose(ours.scores_[fold, at], expected, rtol=1e-8)


@pytest.mark.parametrize("data", ["two", "iris"])
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 3.0, 1: 0.5}])
@pytest.mark.parametrize("weighted", [True, False])
def test_logistic_is_scikit_learns_at_every_strength(data, class_weight, weighted, weights, request):
    X, y = request.getfixturevalue(data)
    X = StandardScaler().fit_transform(X)
    w = weights(len(y)) if weighted else None
    Cs, coefs, intercepts = logistic_path(X, y, Cs=CS, class_weight=class_weight, sample_weight=w)
    for C, coef, b in zip(Cs, coefs, intercepts, strict=True):
        theirs = linear_model.LogisticRegression(C=C, tol=1e-10, max_iter=10_000, class_weight=class_weight)
        theirs.fit(X, y, sample_weight=w)
        ours = LogisticRegression(C=C, class_weight=class_weight).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-4)
        np.testing.assert_allclose(ours.predict_log_proba(X), np.log(ours.predict_proba(X)), atol=1e-9)
        # An excess of a billionth is a distance of its root.
        size = np.abs(theirs.coef_).max()
        np.testing.assert_allclose(ours.coef_, coef, atol=1e-4 * size)
        np.testing.assert_allclose(coef, theirs.coef_, atol=1e-3 * max(1.0, size))
        assert b.shape == theirs.intercept_.shape


@pytest.mark.parametrize("weighted", [True, False])
def test_poisson_is_scikit_learns_at_every_strength(counts, weights, weighted):
    X, y = counts
    w = weights(len(y)) if weighted else None
    for alpha in ALPHAS:
        theirs = linear_model.PoissonRegressor(alpha=alpha, tol=1e-10, max_iter=10_000).fit(X, y, sample_weight=w)
        ours = PoissonRegressor(alpha=alpha, tol=1e-12).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.score(X, y), theirs.score(X, y), rtol=1e-5)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "polynomial", "laplacian"])
@pytest.mark.parametrize("weighted", [True, False])
def test_kernel_ridge_is_scikit_learns_at_every_strength(diabetes, weights, kernel, weighted):
    X, y = diabetes[0][:80], diabetes[1][:80]
    w = weights(len(y)) if weighted else None
    model = KernelRidgeCV(alphas=ALPHAS[1:], kernel=kernel, cv=4).fit(X, y, sample_weight=w)
    for alpha in ALPHAS[1:]:
        theirs = TheirKernelRidge(alpha=alpha, kernel=kernel).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(model.predict(X, alpha=alpha), theirs.predict(X), rtol=1e-6, atol=1e-4)
        ours = KernelRidge(alpha=alpha, kernel=kernel).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6, atol=1e-4)
    assert model.coefs_.shape == (6, 80)


@pytest.mark.parametrize(
    ("cv", "one", "unit", "data"),
    [
        (RidgeCV((1e-2, 1e2)), linear_model.Ridge(), "alpha", "diabetes"),
        (LogisticRegressionCV((1e-2, 1e2)), linear_model.LogisticRegression(tol=1e-10, max_iter=10_000), "C", "two"),
        (PoissonRegressorCV((1e-3, 1e1)), linear_model.PoissonRegressor(tol=1e-10, max_iter=10_000), "alpha", "counts"),
    ],
)
def test_any_strength_of_the_range(cv, one, unit, data, request):
    """Between the strengths of the fit, too, and within the error that is promised."""
    X, y = request.getfixturevalue(data)
    model = clone(cv).fit(X, y)
    for strength in [0.0137, 0.5, 7.77]:
        theirs = clone(one).set_params(**{unit: strength}).fit(X, y)
        at = model.at(strength)
        assert getattr(at, unit) == strength
        length = np.linalg.norm(theirs.coef_)
        error = model.error_(strength)
        assert 0 <= error < 1e-3
        assert np.linalg.norm(at.coef_ - theirs.coef_) <= (error + 2e-4) * length
        np.testing.assert_array_equal(model.predict(X, strength), at.predict(X))
    # A strength of the fit is the fit's.
    own = getattr(model, f"{unit}s_")
    np.testing.assert_array_equal(model.at(own[3]).coef_, model.coefs_[3])
    with pytest.raises(ValueError, match=f"{unit} of 1000000.0 is not possible: from .* to .*, the range that was fitted"):
        model.at(1e6)
    with pytest.raises(ValueError, match="name the same thing"):
        model.predict(X, 1.0, l2=1.0)
    chosen = model.at()
    np.testing.assert_array_equal(chosen.predict(X), model.predict(X))


def test_our_unit_is_the_commands(diabetes):
    X, y = diabetes
    n = len(y)
    by_l2, by_alpha = Ridge(l2=0.1).fit(X, y), Ridge(alpha=0.1 * n).fit(X, y)
    np.testing.assert_allclose(by_l2.coef_, by_alpha.coef_, rtol=1e-12)
    model = RidgeCV(l2="1e-3..1e1:20").fit(X, y)
    np.testing.assert_allclose(model.alphas_, np.geomspace(1e-3, 1e1, 20) * n, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X, l2=1e-3), model.predict(X, alpha=model.alphas_[0]))
    np.testing.assert_allclose(model.predict(X, l2=0.0123), Ridge(l2=0.0123).fit(X, y).predict(X), rtol=1e-5)


@pytest.mark.parametrize(("model", "extra", "make"), [
    ("linear", [], lambda **k: RidgeCV(l2="1e-3..1e1:20", **k)),
    ("linear", ["--standardize"], lambda **k: RidgeCV(l2="1e-3..1e1:20", standardize=True, **k)),
    ("softmax", [], lambda **k: LogisticRegressionCV(l2="1e-3..1e1:20", random_state=3, tol=None, **k)),
    ("poisson", [], lambda **k: PoissonRegressorCV(l2="1e-3..1e1:20", random_state=3, tol=None, **k)),
    ("kernel", ["--target-as", "number"],
     lambda **k: KernelRidgeCV(l2="1e-3..1e1:20", kernel="rbf", fit_intercept=True, **k)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bit_for_bit_what_the_command_fits(tmp_path, model, extra, make, dtype):
    from safetensors.numpy import load_file

    X, y = load_iris(return_X_y=True)
    X = X.astype(dtype)
    np.savez(tmp_path / "data.npz", x=X, y=y.astype(float))
    file = tmp_path / "model.safetensors"
    command = ["fit", str(tmp_path / "data.npz"), "--target", "y", "--model", model, "--l2", "1e-3..1e1:20", "--cv", "5",
               "--seed", "3", "-o", str(file), "--quiet", *extra]  # fmt: skip
    subprocess.run([sys.executable, "-m", "afterfit", *command], check=True, capture_output=True)
    stored = load_file(file)
    ours = make(cv=Folds(5, seed=3)).fit(X, y)
    coef = ours.dual_coef_ if model == "kernel" else ours.coef_
    if model == "kernel" and dtype == np.float32:
        # (Kernels are of float64 here.)
        np.testing.assert_allclose(np.atleast_2d(coef), stored["weight"], rtol=1e-3, atol=1e-3)
        return
    np.testing.assert_array_equal(np.atleast_2d(coef), stored["weight"])
    np.testing.assert_array_equal(np.atleast_1d(ours.intercept_), stored["bias"])


@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_features(container, two):
    X, y = two
    X = np.where(np.abs(X) > 0.7, X, 0.0)
    for model in (RidgeCV([0.1, 1.0], cv=3), LogisticRegressionCV([0.1, 1.0], cv=3), KernelRidge(kernel="rbf")):
        dense, of_sparse = clone(model).fit(X, y), clone(model).fit(container(X), y)
        np.testing.assert_allclose(dense.predict(X), of_sparse.predict(container(X)), rtol=1e-6)
    # Entries that are stored twice are added up, and the matrix is left as it is.
    twice = sparse.csr_matrix((np.ones(4), np.array([0, 0, 1, 0]), np.array([0, 2, 3, 4])), shape=(3, 2))
    ridge = Ridge().fit(twice, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(ridge.coef_, Ridge().fit(twice.toarray(), [1.0, 2.0, 3.0]).coef_, rtol=1e-9)
    assert twice.nnz == 4


def test_orders_and_precisions_are_one_model(diabetes):
    X, y = diabetes
    as_is = Ridge().fit(X, y).coef_
    np.testing.assert_array_equal(Ridge().fit(np.asfortranarray(X), y).coef_, as_is)
    np.testing.assert_array_equal(Ridge().fit(np.repeat(X, 2, axis=1)[:, ::2], y).coef_, as_is)
    single = Ridge().fit(X.astype(np.float32), y).coef_
    np.testing.assert_allclose(single, as_is, rtol=1e-4, atol=1e-2)


def test_names_of_columns(diabetes):
    pd = pytest.importorskip("pandas")
    X, y = diabetes
    names = [f"feature {at}" for at in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names)
    model = RidgeCV().fit(frame, y)
    assert list(model.feature_names_in_) == names
    assert list(model.at(1.0).feature_names_in_) == names
    np.testing.assert_allclose(model.predict(frame), RidgeCV().fit(X, y).predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[::-1]])


def test_names_of_polars_columns(diabetes):
    pl = pytest.importorskip("polars")
    X, y = diabetes
    frame = pl.DataFrame(X, schema=[f"f{at}" for at in range(X.shape[1])])
    model = Ridge().fit(frame, y)
    assert list(model.feature_names_in_) == frame.columns


@pytest.mark.parametrize("model", [RidgeCV(), LogisticRegressionCV(Cs=8), PoissonRegressorCV(alphas=8), KernelRidgeCV(alphas=8)])
def test_pickles_hold_the_path(model, two):
    X, y = two
    model = model.fit(X, y)
    pickled = pickle.dumps(model)
    assert b"afterfit.sklearn" in pickled and b"afterfit.sklearn." not in pickled, "files of the package may move"
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(model.predict(X, 0.77), again.predict(X, 0.77))
    assert again.error_(0.77) == model.error_(0.77)
    assert not hasattr(clone(again), "coefs_")


def test_in_pipelines_and_searches(diabetes):
    X, y = diabetes
    pipe = make_pipeline(StandardScaler(), RidgeCV((1e-2, 1e2)))
    assert cross_val_score(pipe, X, y).mean() > 0.4
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0, 10.0], "standardize": [False, True]}).fit(X, y)
    theirs = GridSearchCV(linear_model.Ridge(), {"alpha": [0.1, 1.0, 10.0]}).fit(X, y)
    ours = [
        score
        for score, p in zip(search.cv_results_["mean_test_score"], search.cv_results_["params"], strict=True)
        if not p["standardize"]
    ]
    np.testing.assert_allclose(ours, theirs.cv_results_["mean_test_score"], rtol=1e-7)


@pytest.mark.parametrize(
    "scoring", [None, "r2", "neg_mean_absolute_error", make_scorer(mean_squared_error, greater_is_better=False)]
)
@pytest.mark.parametrize("cv", [4, TimeSeriesSplit(4), KFold(3, shuffle=True, random_state=1)])
def test_folds_and_scores_are_scikit_learns(diabetes, weights, scoring, cv):
    X, y = diabetes
    w = weights(len(y))
    model = RidgeCV(ALPHAS, scoring=scoring, cv=cv).fit(X, y, sample_weight=w)
    scorer = get_scorer(scoring or "neg_mean_squared_error") if not callable(scoring) else scoring
    splits = list((KFold(cv) if isinstance(cv, int) else cv).split(X))
    expected = np.empty((len(splits), len(ALPHAS)))
    for fold, (train, test) in enumerate(splits):
        for at, alpha in enumerate(ALPHAS):
            theirs = linear_model.Ridge(alpha=alpha).fit(X[train], y[train], sample_weight=w[train])
            expected[fold, at] = scorer(theirs, X[test], y[test], sample_weight=w[test])
    np.testing.assert_allclose(model.scores_, expected, rtol=1e-7)
    assert model.alpha_ == ALPHAS[expected.mean(axis=0).argmax()]
    assert model.alpha_1se_ >= model.alpha_


def test_logistic_folds_are_scikit_learns(two):
    X, y = two
    ours = LogisticRegressionCV(CS, cv=StratifiedKFold(4), class_weight="balanced", store_cv_results=True).fit(X, y)
    assert ours.coefs_paths_.shape == (4, len(CS), 1, 6)
    theirs = linear_model.LogisticRegressionCV(
        Cs=CS, cv=StratifiedKFold(4), scoring="neg_log_loss", tol=1e-10, max_iter=10_000, class_weight="balanced",
        l1_ratios=(0.0,), use_legacy_attributes=False,
    ).fit(X, y)  # fmt: skip
    np.testing.assert_allclose(ours.scores_, theirs.scores_[:, 0], rtol=1e-4)
    assert ours.C_ == theirs.C_
    by_accuracy = LogisticRegressionCV(CS, cv=4, scoring="accuracy").fit(X, y)
    assert (by_accuracy.scores_ >= 0).all() and (by_accuracy.scores_ <= 1).all()


def test_which_strength_is_selected(diabetes):
    X, y = diabetes
    model = RidgeCV().fit(X, y)
    simpler = RidgeCV(select="1se").fit(X, y)
    assert simpler.alpha_ == model.alpha_1se_ > model.alpha_
    strongest = RidgeCV(select=lambda alphas, scores: int(alphas.argmax())).fit(X, y)
    assert strongest.alpha_ == model.alphas_.max()
    with pytest.raises(ValueError, match="select is 'min', '1se' or a function, not 'best'"):
        RidgeCV(select="best").fit(X, y)


def test_ranges_lists_and_counts(diabetes):
    X, y = diabetes
    assert len(RidgeCV((1e-2, 1e2)).fit(X, y).alphas_) == 50
    assert RidgeCV([1e-2, 1e2]).fit(X, y).alphas_.tolist() == [1e-2, 1e2]
    counted = RidgeCV(12).fit(X, y).alphas_
    np.testing.assert_allclose([len(counted), counted[0], counted[-1]], [12, 1e-5 * len(y), 1e2 * len(y)])
    assert LogisticRegressionCV(5).fit(X, y > 100).Cs_[[0, -1]].tolist() == [1e-4, 1e4]
    for wrong, words in [
        ((2.0, 1.0), "is empty"),
        ([0.0, 1.0], "0.0 is not possible"),
        ([], "none of them"),
        ([np.nan], "nan"),
    ]:
        with pytest.raises(ValueError, match=words):
            RidgeCV(wrong).fit(X, y)
    with pytest.raises(ValueError, match="must be above 0"):
        Ridge(alpha=0.0).fit(X, y)


def test_groups_and_routing(two):
    X, y = two
    groups = np.repeat(np.arange(15), 10)
    by_groups = LogisticRegressionCV(CS, cv=GroupKFold(5)).fit(X, y, groups=groups)
    given = LogisticRegressionCV(CS, cv=list(GroupKFold(5).split(X, y, groups))).fit(X, y)
    np.testing.assert_array_equal(by_groups.scores_, given.scores_)
    held = [set(groups[test]) for _, test in Folds(5).split(X, y, groups)]
    assert sum(len(one) for one in held) == 15
    with pytest.raises(ValueError, match="only supported if enable_metadata_routing=True"):
        RidgeCV().fit(X, y, strata=groups)


@pytest.mark.parametrize(
    ("many", "theirs", "scoring"),
    [
        (LogisticRegressionCV(CS), linear_model.LogisticRegressionCV(use_legacy_attributes=False), "neg_log_loss"),
        (RidgeCV(ALPHAS), linear_model.RidgeCV(), "r2"),
        (PoissonRegressorCV(ALPHAS), None, "neg_mean_absolute_error"),
        (KernelRidgeCV(ALPHAS), None, "r2"),
    ],
)
def test_metadata_is_routed(two, many, theirs, scoring):
    X, y = two
    groups, weights = np.repeat(np.arange(15), 10), np.linspace(0.5, 2.0, len(y))
    many.set_params(cv=GroupKFold(5), scoring=scoring)
    plain = clone(many).fit(X, y, sample_weight=weights, groups=groups)
    with sklearn.config_context(enable_metadata_routing=True):
        if theirs is not None:
            theirs.set_params(cv=GroupKFold(5), scoring=scoring)
            ours, own = (model.get_metadata_routing().consumes("fit", ["groups", "sample_weight"]) for model in (many, theirs))
            assert ours == own == {"groups"}
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="sample_weight"):
            many.fit(X, y, sample_weight=weights, groups=groups)
        weighted = get_scorer(scoring).set_score_request(sample_weight=True)
        many.set_params(scoring=weighted).set_fit_request(sample_weight=True)
        routed = clone(many).fit(X, y, sample_weight=weights, groups=groups)
        np.testing.assert_array_equal(routed.scores_, plain.scores_)
        unweighted = get_scorer(scoring).set_score_request(sample_weight=False)
        other = clone(many).set_params(scoring=unweighted).fit(X, y, sample_weight=weights, groups=groups)
        np.testing.assert_array_equal(other.coefs_, plain.coefs_)
        assert not np.array_equal(other.scores_, plain.scores_)
        # What only a scorer knows reaches its rows.
        seen = []

        def judge(y_true, y_pred, *, cost):
            seen.append(cost)
            return -float(np.mean(cost * (y_true - y_pred) ** 2))

        scorer = make_scorer(judge).set_score_request(cost=True)
        clone(many).set_params(scoring=scorer).fit(X, y, groups=groups, cost=np.arange(len(y)))
        held = [test for _, test in GroupKFold(5).split(X, y, groups)]
        assert all(any(np.array_equal(cost, test) for test in held) for cost in seen) and len(seen) >= 5
        # And all of it through a pipeline, whose step is not asked about groups.
        pipe = make_pipeline(StandardScaler(with_mean=False, with_std=False).set_fit_request(sample_weight=False), clone(many))
        pipe.fit(X, y, sample_weight=weights, groups=groups)
        np.testing.assert_array_equal(pipe[-1].scores_, plain.scores_)
        folds = clone(many).set_params(cv=Folds(5)).fit(X, y, sample_weight=weights, groups=groups)
        with pytest.raises(TypeError, match="groups"):
            clone(many).set_params(cv=5).fit(X, y, groups=groups)
    again = clone(many).set_params(cv=Folds(5), scoring=scoring).fit(X, y, sample_weight=weights, groups=groups)
    np.testing.assert_array_equal(folds.scores_, again.scores_)


def test_what_is_wrong_is_said(two):
    X, y = two
    with pytest.raises(ValueError, match="from 2 to the 150 rows there are"):
        RidgeCV(cv=Folds(200)).fit(X, y)
    with pytest.raises(ValueError, match="only one class"):
        LogisticRegression().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="a count of -1.0 is not possible"):
        PoissonRegressor().fit(X, np.where(y == 0, -1.0, 1.0))
    with pytest.raises(ValueError, match="there is no kernel `chi2`"):
        KernelRidge(kernel="chi2").fit(X, y)
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        Ridge().fit(X, y, sample_weight=-np.ones(len(y)))
    one = RidgeCV([1.0]).fit(X, y)
    with pytest.raises(ValueError, match="only the strengths that were fitted"):
        one.predict(X, alpha=2.0)


def test_settings_that_mean_nothing_are_refused(two):
    X, y = two
    place = np.arange(len(y))
    for wrong, words in [
        ({"cv": []}, "it gives no fold"),
        ({"cv": [(place[:90], place[90:] - 200)]}, "cv names row -"),
        ({"cv": [(place[:90], place[90:] + 90)]}, "there are rows 0 to 149"),
        ({"scoring": ["r2"]}, "it must be one name, or a function"),
        ({"scoring": {"a": "r2"}}, "it must be one name, or a function"),
        ({"alphas": {}}, "is none of them"),
        ({"alphas": None}, "is none of them"),
    ]:
        with pytest.raises(ValueError, match=words):
            RidgeCV(**wrong).fit(X, y)
    for model in (Ridge(fit_intercept="no"), KernelRidge(fit_intercept="no"), Ridge(standardize=2)):
        with pytest.raises(TypeError, match="it must be True or False"):
            model.fit(X, y)
    fitted = RidgeCV().fit(X, y)
    for asked in ({"alpha": [0.5]}, {"alpha": "x"}, {"l2": np.ones(2)}):
        with pytest.raises(TypeError, match="it must be one number"):
            fitted.predict(X, **asked)
    with pytest.raises(ValueError, match="tol is inf: it must be above 0 and finite"):
        LogisticRegression(tol=np.inf).fit(X, y)


def test_folds_may_be_masks(diabetes):
    X, y = diabetes
    splits = list(KFold(3).split(X))
    masks = [(np.isin(np.arange(len(y)), trains), np.isin(np.arange(len(y)), held)) for trains, held in splits]
    np.testing.assert_array_equal(RidgeCV(cv=masks).fit(X, y).scores_, RidgeCV(cv=splits).fit(X, y).scores_)


def test_any_random_state(two):
    X, y = two
    expected = LogisticRegression().fit(X, y).coef_
    for state in (None, 0, np.int64(3), np.random.RandomState(0), np.random.default_rng(0)):
        np.testing.assert_allclose(LogisticRegression(random_state=state).fit(X, y).coef_, expected, rtol=1e-6)
    for state in ("x", 1.5, -1):
        with pytest.raises(ValueError):
            LogisticRegression(random_state=state).fit(X, y)


def test_scores_that_are_nan_choose_nothing(diabetes, two):
    X, y = diabetes
    with pytest.raises(ValueError, match="NaN at every strength"):
        RidgeCV(ALPHAS, scoring=lambda *_: np.nan).fit(X, y)
    with pytest.raises(ValueError, match="NaN at every strength"):
        LogisticRegressionCV(CS, scoring=lambda *_: np.nan).fit(*two)

    for select in ("min", "1se"):
        asked = itertools.count()  # (fold by fold, and in each strength by strength)

        def judge(*_, asked=asked):
            strength = next(asked) % len(ALPHAS)
            return np.nan if strength < 4 else -float(strength)

        with pytest.warns(UserWarning, match="the scores of 4 of 7 strengths hold NaN"):
            model = RidgeCV(ALPHAS, scoring=judge, select=select).fit(X, y)
        assert model.alpha_ == ALPHAS[4] and np.isnan(model.scores_).sum() == 20


def test_notes_have_the_names_of_settings(diabetes):
    X, y = diabetes
    notes = " ".join(RidgeCV(alphas=(1e3, 1e4)).fit(X, y).notes_)
    assert "a wider alphas may hold a better one" in notes and "--" not in notes and "λ" not in notes


def test_display(diabetes):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = diabetes
    display = RegularizationPathDisplay.from_estimator(RidgeCV(), X, y)
    assert len(display.lines_) == 10 and display.score_ax_ is not None
    other = RegularizationPathDisplay.from_estimator(LogisticRegressionCV(Cs=6).fit(X, y > 100), ax=display.ax_)
    assert other.ax_ is display.ax_ and other.ax_.get_xscale() == "log"


def test_what_is_too_far_off_between_strengths_is_refused() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4))
    model = RidgeCV(alphas=(1e-8, 1e8)).fit(x, x.sum(1) + rng.normal(size=30))
    assert model.error_(float(model.alphas_[20])) < 1e-9
    with pytest.raises(ValueError, match="lies between the strengths that were fitted"):
        model.at(6.9e7)


GROWTH = """
import sys
import numpy as np
import afterfit.sklearn as ours

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

name, order, dtype, standardize = sys.argv[1:]
rows, columns = 250_000, 128 if dtype == "float32" else 64
X = np.random.default_rng(0).random((columns, rows) if order == "F" else (rows, columns), dtype=dtype)
X = X.T if order == "F" else X
y = (X[:, 0] > 0.5).astype(float)
model = getattr(ours, name)(standardize=standardize == "yes")
model.fit(X[:1000], y[:1000])
before, held = peak(), sys.getrefcount(X)
model.fit(X, y)
assert sys.getrefcount(X) == held, "it is held no longer than the fit takes"
print((peak() - before) / X.nbytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "order", "dtype", "standardize", "limit"),
    [
        ("Ridge", "C", "float64", "no", 0.6),
        ("Ridge", "F", "float64", "no", 0.6),
        ("Ridge", "C", "float32", "no", 0.6),
        ("Ridge", "F", "float32", "no", 0.6),
        ("Ridge", "C", "float64", "yes", 0.6),
        # (A fifth of the rows at a time while they judge, and which rows these are.)
        ("RidgeCV", "C", "float64", "no", 1.0),
        ("RidgeCV", "F", "float64", "no", 1.0),
        ("LogisticRegression", "C", "float64", "no", 0.6),
        ("LogisticRegression", "C", "float32", "no", 0.6),
        # (What goes through the rows many times copies columns, once.)
        ("LogisticRegression", "F", "float64", "no", 1.6),
    ],
)
def test_arrays_are_read_where_they_lie(name, order, dtype, standardize, limit):
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, name, order, dtype, standardize], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < limit, "of the array's bytes"
