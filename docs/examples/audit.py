# %% [markdown]
# # Audit a model that you already have
# Nothing is trained here: the decisions of any model, or of people, are compared between groups.
# One open query answers with noised counts; company and regulator see the same numbers.

# %%
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

from isonomy.company import LocalOracle, audit, lending
from isonomy.company.federation.auditing import price

# %% [markdown]
# A model that has been in use for years, and its decisions on 10,000 people. All that the audit
# needs is what was decided about whom, and, if you have it, what turned out to be right.

# %%
people = lending(people=12_000, seed=0)
X, y = pd.get_dummies(people.features), people.target
in_use = HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(X[:2_000], y[:2_000])
decisions, repaid, ids = in_use.predict(X[2_000:]), y[2_000:], people.ids[2_000:]

# %% [markdown]
# In a session: `with join("plan.json", home="company") as oracle:`. Here the regulator's side runs
# in this process. The price is known before anything is asked.

# %%
attributes = {name: list(column[2_000:]) for name, column in people.attributes.items()}
oracle = LocalOracle.rehearse(ids, attributes, epsilon=1.0, delta=1e-5)
print(price(oracle, share=0.2, attribute="sex"))

# %%
by_sex = audit(oracle, decisions, repaid, ids=ids, name="in use", attribute="sex", share=0.2)
by_origin = audit(oracle, decisions, repaid, ids=ids, attribute="origin", share=0.2)
print(by_sex)
print(by_origin)

# %% [markdown]
# Every number has a 95 % interval that covers sampling and noise. For a machine:

# %%
findings = by_sex.table("sex").findings()
difference = findings.differences["demographic_parity"]
print(f"women and men differ by {difference.low:.1%} to {difference.high:.1%}")
budget = oracle.budget
print(f"ε = {budget.spent_epsilon:.2f} of {budget.cap_epsilon:.2f} spent")
