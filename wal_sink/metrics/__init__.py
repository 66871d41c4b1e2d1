"""Metrics for Prometheus. No other package imports prometheus_client."""
