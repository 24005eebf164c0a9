"""Few-shot collaboration on the company's side: data sets, rehearsals, experiments, adaptation."""
