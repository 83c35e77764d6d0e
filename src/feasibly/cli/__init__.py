"""The user's commands: `python -m feasibly {demo, sample, check}`."""
