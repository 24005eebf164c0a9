"""A fair model in MLflow, with its report beside it. Needs `pip install isonomy[mlflow]`."""

import os

import mlflow
import pandas as pd
import skops.io
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.company import FairClassifier, LocalOracle, lending

people = lending(people=3_000, seed=0)
X, y, ids = pd.get_dummies(people.features), people.target, people.ids
oracle = LocalOracle.rehearse(ids, {"sex": list(people.attributes["sex"])}, epsilon=1.0, delta=1e-5)
model = FairClassifier(
    make_pipeline(StandardScaler(), LogisticRegression()),
    oracle=oracle,
    tolerance=0.02,
    cv=3,
    random_state=0,
)
model.fit(X, y, ids=ids)

# A folder for this example; in a bank, the address of the tracking server.
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
mlflow.set_tracking_uri("mlruns")
with mlflow.start_run() as run:
    report = model.report_
    mlflow.log_params({"notion": report.notion, "tolerance": report.tolerance})
    mlflow.log_metrics({"error": report.error, "epsilon_spent": report.epsilon_spent})
    mlflow.log_dict(report.to_json(), "report.json")
    mlflow.log_text(model.plot_groups().svg(), "groups.svg")
    # skops stores no code; what it lists is what you trust when the model is loaded.
    trusted = skops.io.get_untrusted_types(data=skops.io.dumps(model))
    logged = mlflow.sklearn.log_model(
        model,
        name="fair",
        skops_trusted_types=trusted,
        pip_requirements=["isonomy[company]"],
    )

# The oracle is left out: a copy predicts and asks nothing.
again = mlflow.sklearn.load_model(logged.model_uri)
assert (again.predict(X) == model.predict(X)).all()
print(f"run {run.info.run_id}: {report.notion}, ε = {report.epsilon_spent:.2f} spent")
