# %% [markdown]
# # Tune without burning the plan
# A plan is paid for once. Tuning needs no attributes, so the search belongs *inside* the fair
# model; and what was released may be used again for every further model on the same people.

# %%
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.company import FairClassifier, LocalOracle, lending, load_releases, save_releases

people = lending(people=4_000, seed=0)
X, y, ids = pd.get_dummies(people.features), people.target, people.ids
oracle = LocalOracle.rehearse(ids, {"sex": list(people.attributes["sex"])}, epsilon=1.0, delta=1e-5)

# %% [markdown]
# The search is the base model: it looks for the best parameters on features and labels alone. One
# fit, one plan. (A search *around* a `FairClassifier` would pay for every fold; it is refused.)

# %%
base = make_pipeline(StandardScaler(), LogisticRegression())
search = GridSearchCV(base, {"logisticregression__C": [0.01, 1.0]}, cv=3)
model = FairClassifier(search, oracle=oracle, tolerance=0.02, cv=3, random_state=0)
model.fit(X, y, ids=ids)
spent = oracle.budget.spent_epsilon
print(model.base_estimator_.best_params_, f"ε = {spent:.2f} spent")

# %% [markdown]
# Another tolerance is free, and so is the whole frontier.

# %%
looser = model.at(tolerance=0.05)
for point in model.frontier([0.01, 0.05, 0.1]):
    print(f"tolerance {point.tolerance:.0%}: gap {point.violation:.1%}, error {point.error:.1%}")

# %% [markdown]
# Another base model on the same people is free too: keep the releases, and give them to it. The
# file has the scores of the training rows in it, so it stays where the training rows are.

# %%
save_releases(model.releases_, "releases")
again = FairClassifier(
    HistGradientBoostingClassifier(max_iter=30),
    oracle=oracle,
    tolerance=0.02,
    releases=load_releases("releases"),
    cv=3,
    random_state=0,
)
again.fit(X, y, ids=ids)
print(again.report_)
assert oracle.budget.spent_epsilon == spent  # nothing more was spent
