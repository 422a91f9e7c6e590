"""What a running process shows over HTTP: metrics, health and a page, all read-only."""
