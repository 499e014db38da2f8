"""Training: the schema of a recipe, the plan of a stage, and the run of a stage through transformers.Trainer."""
