# %% [markdown]
# # Rehearse before you ask a regulator
# A rehearsal runs the whole regulator's side in this process, on data where both sides are known:
# the same rules, ledger and noise as in a session, without network. So you learn what a budget buys
# before anybody's attribute is used.

# %%
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.company import FairClassifier, LocalOracle, lending

# %% [markdown]
# A lending population that is made here: no real person is in it. Put your own table in its place:
# `X` and `y` are the company's, `sex` stands for what only the regulator knows.

# %%
people = lending(people=8_000, seed=0)
X, y = pd.get_dummies(people.features), people.target
sex = pd.Series(people.attributes["sex"])
train, test = train_test_split(range(len(X)), test_size=0.5, random_state=0)
ids = [people.ids[i] for i in train]

# %% [markdown]
# The oracle is all that the company will have of the regulator. It answers with noised sums over
# groups, until ε is spent.

# %%
oracle = LocalOracle.rehearse(ids, {"sex": sex[train].tolist()}, epsilon=1.0, delta=1e-5)
model = FairClassifier(
    make_pipeline(StandardScaler(), LogisticRegression()),
    notion="demographic_parity",
    tolerance=0.02,
    oracle=oracle,
    random_state=0,
)
model.fit(X.iloc[train], y[train], ids=ids)
print(model.report_)

# %% [markdown]
# The pictures come from the same noised answers as the report.

# %%
model.plot_groups().save("groups.svg")
model.plot_frontier().save("frontier.html")

# %% [markdown]
# Only a rehearsal can check the estimate: here everybody's attribute is known.


# %%
def gap(decisions) -> float:
    rates = pd.Series(decisions).groupby(sex[test].to_numpy()).mean()
    return float(rates.max() - rates.min())


before = gap(model.base_estimator_.predict(X.iloc[test]))
after = gap(model.predict(X.iloc[test]))
spent = oracle.budget.spent_epsilon
print(f"gap on new people: {before:.1%} before, {after:.1%} after; ε = {spent:.2f} spent")
