"""Standard Webhooks signatures: who calls is the cluster that knows the secret, and the body is what it sent."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping

TOLERANCE_S = 300
"""How far the sender's clock may be from ours, in seconds."""

_PREFIX = "whsec_"


class InvalidSignature(Exception):
    """The request is not signed with the secret, or was signed too long ago."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature` for a request."""
    content = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> None:
    """Returns if the request is signed with `secret`.

    `headers` is asked for `webhook-id`, `webhook-timestamp` and `webhook-signature`, which may hold several signatures while a
    secret is replaced.

    Raises InvalidSignature, which says what is wrong.
    """
    message_id, stamp, given = (headers.get(f"webhook-{name}") for name in ("id", "timestamp", "signature"))
    if not message_id or not stamp or not given:
        raise InvalidSignature("webhook-id, webhook-timestamp and webhook-signature are needed")
    # int() would accept signs, spaces and underscores, and refuse very long numbers in its own way.
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 15:
        raise InvalidSignature("webhook-timestamp: is not a number of seconds")
    timestamp = int(stamp)
    if abs((time.time() if now is None else now) - timestamp) > TOLERANCE_S:
        raise InvalidSignature(f"webhook-timestamp: is more than {TOLERANCE_S} s from this clock")
    expected = sign(secret, message_id, timestamp, body)
    if not any(hmac.compare_digest(expected.encode(), one.encode()) for one in given.split()):
        raise InvalidSignature("webhook-signature: does not fit")


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        raise ValueError(f"secret: must start with {_PREFIX}")
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"secret: is not base64 after {_PREFIX}") from error
    if not key:
        raise ValueError("secret: is empty")
    return key
