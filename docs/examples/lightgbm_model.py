"""A LightGBM model made fair, with its categories as they are. Needs `pip install lightgbm`."""

from lightgbm import LGBMClassifier

from isonomy.company import FairClassifier, LocalOracle, lending

people = lending(people=4_000, seed=0)
X = people.features.copy()
for column in X.select_dtypes(exclude="number"):
    X[column] = X[column].astype("category")  # LightGBM splits on categories by itself
y, ids = people.target, people.ids

# In a session: with join("plan.json", home="company") as oracle.
oracle = LocalOracle.rehearse(ids, {"sex": list(people.attributes["sex"])}, epsilon=1.0, delta=1e-5)
model = FairClassifier(
    LGBMClassifier(n_estimators=40, num_leaves=15, verbose=-1, n_jobs=1),
    notion="equal_opportunity",  # equal chances for those who repay
    tolerance=0.02,
    oracle=oracle,
    cv=3,
    random_state=0,
)
model.fit(X, y, ids=ids)
print(model.report_)
print(f"{model.predict(X).mean():.1%} selected, by features alone")
model.plot_groups().save("groups.svg")
