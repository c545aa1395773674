"""Real servers on a bare machine, on loopback only, for tests, benchmarks and the demo."""
