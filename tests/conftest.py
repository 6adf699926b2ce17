"""Settings for every test."""

from hypothesis import HealthCheck, settings

# Kernels compile on first use, so a single example may take seconds: no deadline, and no verdict on slowness.
settings.register_profile("penstock", deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
settings.load_profile("penstock")
