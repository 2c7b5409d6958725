"""Every strength of a ridge and of a logistic regression, from one fit each."""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from afterfit.sklearn import LogisticRegressionCV, RidgeCV, ridge_path

X, y = load_diabetes(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, random_state=0)

model = RidgeCV(alphas=(1e-3, 1e2), select="1se").fit(X, y)
print(f"alpha = {model.alpha_:.3g}: R² = {model.score(X_test, y_test):.3f}")

# Any other strength of the range, without another fit; how exact it is.
for alpha in [0.01, 0.3, 7.0]:
    at = model.at(alpha)
    print(f"alpha = {alpha}: R² = {at.score(X_test, y_test):.3f}, coefficients within {model.error_(alpha):.0e}")

# The whole path, as scikit-learn's lasso_path has it.
alphas, coefs, intercepts = ridge_path(X, y, alphas=100)
print(f"{len(alphas)} strengths, the largest coefficient from {np.abs(coefs[0]).max():.0f} to {np.abs(coefs[-1]).max():.1g}")

# In a pipeline, like any other estimator.
X, y = load_breast_cancer(return_X_y=True)
classifier = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=(1e-3, 1e2))).fit(X, y)
print(f"C = {classifier[-1].C_:.3g}: {classifier.score(X, y):.1%} of the rows")
