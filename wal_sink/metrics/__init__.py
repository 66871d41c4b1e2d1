"""What Prometheus gets. No other room imports prometheus_client."""
