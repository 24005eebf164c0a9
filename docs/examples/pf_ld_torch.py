# %% [markdown]
# # PF-LD on a torch model
# Fairness enters the training itself: the company minimises its loss, and a private gradient of the
# fairness constraint is added to it ([gradient.md](../gradient.md)). Any module that gives logits
# will do.

# %%
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

from isonomy.company import PFLD, LocalOracle, Trainer, lending

# %% [markdown]
# Half of the people train, the other half show what came of it. The regulator has the column `sex`;
# in a session `join` gives the oracle, and nothing else changes.

# %%
people = lending(people=6_000, seed=0)
X = StandardScaler().fit_transform(pd.get_dummies(people.features)).astype(np.float32)
y, sex = people.target, np.array(people.attributes["sex"])
train, test = train_test_split(np.arange(len(X)), test_size=0.5, random_state=0)
ids = [people.ids[i] for i in train]
oracle = LocalOracle.rehearse(ids, {"sex": sex[train].tolist()}, epsilon=3.0, delta=1e-5)

# %% [markdown]
# One plan carries one run. A run that is killed goes on from its checkpoint with
# `fit(..., resume="checkpoint")`: what was answered is not paid for again.

# %%
torch.manual_seed(0)
trainer = Trainer(
    nn.Sequential(nn.Linear(X.shape[1], 16), nn.ReLU(), nn.Linear(16, 2)),
    PFLD("demographic_parity"),
    oracle,
    optimiser=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    rounds=12,
    checkpoint="checkpoint",
)
result = trainer.fit(X[train], y[train], ids=ids)

# %% [markdown]
# The history has every release with its noise, and the three ε.

# %%
print(result.history.table()[["round", "loss", "violation", "deviation", "epsilon_spent"]])
result.history.plot(cap_epsilon=result.epsilons.cap, tolerance=0.02).save("history.html")

# %% [markdown]
# A rehearsal knows everybody's attribute, so it can look at people who were not trained on.

# %%
with torch.no_grad():
    decisions = result.model(torch.from_numpy(X[test])).argmax(dim=1).numpy()
accuracy = float((decisions == y[test]).mean())
rates = pd.Series(decisions).groupby(sex[test]).mean()
gap = float(rates.max() - rates.min())
print(f"accuracy {accuracy:.1%}, gap {gap:.1%}, ε = {result.epsilons.spent:.2f}")
