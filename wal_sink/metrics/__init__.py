"""What Prometheus gets. Nothing else imports prometheus_client."""
