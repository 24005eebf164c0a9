# %% [markdown]
# # A federation on one machine
# Server, regulator's daemon and both Flower nodes run as processes of their own, as they would on
# three machines ([deploy.md](../deploy.md) has the commands). This notebook is the company's
# script: it joins the session, trains, has its decisions audited, and never sees an attribute.

# %%
from pathlib import Path

import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.company import FairClassifier, audit, join
from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import read_company
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes

# %% [markdown]
# What a company does. `join` waits for the session. Every question is encrypted, paid for, and
# written into the regulator's ledger.


# %%
def train_and_audit(plan: Path, home: Path, X, y, ids):
    with join(plan, home=home, wait_s=120) as oracle:
        model = FairClassifier(
            make_pipeline(StandardScaler(), LogisticRegression()),
            oracle=oracle,
            random_state=0,
        )
        model.fit(X, y, ids=ids)  # keeps a tenth of the plan for two audits
        options = {"ids": ids, "whose": "trained on"}  # the report warns about that
        before = audit(oracle, model.base_estimator_.predict(X), y, name="before", **options)
        after = audit(oracle, model.predict(X), y, name="after", **options)
        return model, before, after, oracle.budget.spent_epsilon


# %% [markdown]
# The stage: `prepare` makes keys, certificates, made-up people and a plan that both owners approve;
# the attributes go to the regulator's vault. At the end the regulator signs its report, and
# `isonomy-verify` checks every number of it against the ledger.

# %%
RECORD = {  # what Article 10(5) of the EU AI Act asks the regulator to write down
    "reason": "To measure and correct differences between groups.",
    "alternatives": "None: without the attributes they can be neither seen nor corrected.",
    "access": "The regulator's officers alone.",
    "retention": "Until the folder of this example is removed.",
}
layout = Layout.make(Path("run"))
with Processes(layout.logs) as processes:
    prepare(layout, DemoSettings(people=2_000, epsilon="3"), processes)
    federation = Federation(layout, processes)
    federation.start()
    federation.open_session()
    X, y, ids, _ = read_company(layout)
    model, before, after, spent = train_and_audit(
        layout.plan, layout.company.folder, pd.get_dummies(X), y, ids
    )
    outcome = federation.outcome()
    report = [str(layout.plan), "--out", "report", "-c", str(layout.regulator_config)]
    report += [f"--{name}={text}" for name, text in RECORD.items()]
    processes.run("report", ["isonomy-regulator", "report", *report])
    against = {"card": layout.regulator / "keys" / "card.json", "ledger": layout.ledger}
    checks = [f"--{name}={path}" for name, path in {**against, "plan": layout.plan}.items()]
    verified = processes.run("verify", ["isonomy-verify", "report", *checks])

# %%
print(model.report_, after, sep="\n")
print(f"ε = {spent:.3f} spent in {outcome['relay']['bytes']:,} bytes through the server")
