"""Memory-efficient continual learning."""
