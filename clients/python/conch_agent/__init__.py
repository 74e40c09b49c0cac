"""Agents for Conch, as HTTP workers.

The owner of a conversation POSTs a turn; the worker streams its answer and makes each side effect a durable step before it
goes on. A turn whose worker or owner dies is run again from its beginning, with the completed steps in the journal: code
between steps runs again, a completed step does not.

Deliberately absent: state of its own. What must survive is a step's output or the turn's `state`.
"""

from .server import serve
from .signature import InvalidSignature, sign, verify
from .turn import Agent, Await, JournalMismatch, Stale, StepRefused, Turn

__all__ = [
    "Agent",
    "Await",
    "InvalidSignature",
    "JournalMismatch",
    "Stale",
    "StepRefused",
    "Turn",
    "serve",
    "sign",
    "verify",
]
