"""The regulator: holds people's sensitive attributes, answers within approved budgets."""
