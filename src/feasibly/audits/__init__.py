"""Audits: whether a sampler is right on your model and your constraint."""

from .findings import Candidate, Examination, Finding, examine
from .result import Audit
from .run import audit

__all__ = ["Audit", "Candidate", "Examination", "Finding", "audit", "examine"]
