"""Training: the schema of a recipe, the plan of a stage, and its run through transformers.Trainer."""
