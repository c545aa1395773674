"""The soak: a random federation under faults, checked from outside against a naive model.

``python -m tests.soak --seconds 60 --seed 1``; ``docs/soak.md`` says how to read what it finds.
"""
