"""Predicting over a dataset, scoring prediction files, and reporting."""
