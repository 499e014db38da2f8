"""Metrics that know predictions and annotations, never a model."""
