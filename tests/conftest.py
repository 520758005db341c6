"""How all tests run: a slow machine is no fault of the code."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.suite_traces"]

settings.register_profile("luce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("luce")
