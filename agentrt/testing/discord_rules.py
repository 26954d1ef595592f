"""What Discord answers to a webhook post, as the double says it: reading a request, its rules, the bodies of errors.

The shapes follow discord/discord-api-docs: resources/webhook, resources/message, topics/rate-limits, reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

content_chars_max = 2_000  # code points, as Discord's servers count (discord-api-docs#1315)
username_chars_max = 80
_flags_allowed = 4 | 4096  # SUPPRESS_EMBEDS, SUPPRESS_NOTIFICATIONS
_mention_kinds = {"users", "roles", "everyone"}


async def read(request: web.Request) -> tuple[dict[str, object], dict[str, bytes]]:
    """The JSON of a request and its files; the JSON is `{"": text}` when it is no object."""
    files: dict[str, bytes] = {}
    text = ""
    if request.content_type == "multipart/form-data":
        for part in (await request.post()).values():
            if isinstance(part, web.FileField):
                files[part.filename] = part.file.read()
            else:
                text = part.decode() if isinstance(part, (bytes, bytearray)) else str(part)
    else:
        text = await request.text()
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return (body if isinstance(body, dict) else {"": text}), files


def refusal(body: Mapping[str, object], files: Mapping[str, bytes]) -> web.Response | None:
    """What Discord says of a body that breaks a rule; None: it breaks none."""
    if "" in body:
        return answer(400, {"message": "The request body contains invalid JSON.", "code": 50109})
    content = body.get("content") or ""
    if isinstance(content, str) and not content.strip() and not files:
        return answer(400, {"message": "Cannot send an empty message", "code": 50006})
    wrong = _content_error(content) or _username_error(body.get("username")) or _options_error(body)
    if wrong is None:
        return None
    path, code, message = wrong
    errors = {path: {"_errors": [{"code": code, "message": message}]}}
    return answer(400, {"message": "Invalid Form Body", "code": 50035, "errors": errors})


def _content_error(content: object) -> tuple[str, str, str] | None:
    if not isinstance(content, str):
        return "content", "STRING_TYPE_CONVERT", "Could not interpret value as string."
    if len(content) > content_chars_max:
        return "content", "BASE_TYPE_MAX_LENGTH", f"Must be {content_chars_max} or fewer in length."
    return None


def _username_error(name: object) -> tuple[str, str, str] | None:
    if name is None:
        return None
    if not isinstance(name, str) or not 1 <= len(name) <= username_chars_max:
        return "username", "BASE_TYPE_BAD_LENGTH", f"Must be between 1 and {username_chars_max} in length."
    if forbidden := next((word for word in ("discord", "clyde") if word in name.lower()), None):
        return "username", "USERNAME_INVALID_CONTAINS", f'Username cannot contain "{forbidden}"'
    return None


def _options_error(body: Mapping[str, object]) -> tuple[str, str, str] | None:
    mentions, flags = body.get("allowed_mentions") or {}, body.get("flags", 0)
    parse = mentions.get("parse", []) if isinstance(mentions, dict) else None
    if not isinstance(parse, list) or not _mention_kinds.issuperset(parse):
        return "allowed_mentions", "BASE_TYPE_CHOICES", "Value must be one of ('users', 'roles', 'everyone')."
    if not isinstance(flags, int) or flags & ~_flags_allowed:
        return "flags", "BASE_TYPE_CHOICES", "Only SUPPRESS_EMBEDS and SUPPRESS_NOTIFICATIONS can be set."
    return None


def limited(retry_after_s: float, header: str, scope: str) -> web.Response:
    """A 429 of Discord itself: the wait with its fraction in the body, and the header as given."""
    headers = {"Retry-After": header, "X-RateLimit-Scope": scope}
    if scope == "global":
        headers["X-RateLimit-Global"] = "true"
    body = {"message": "You are being rate limited.", "retry_after": retry_after_s, "global": scope == "global"}
    return answer(429, body, headers)


def banned() -> web.Response:
    """The 429 of the edge in front of Discord when it bans an address: a page, and no `Via`."""
    page = (
        "<!doctype html><html><head><title>Access denied | discord.com is protected by Cloudflare</title></head></html>"
    )
    return web.Response(status=429, text=page, content_type="text/html")


def answer(
    status: int, body: Mapping[str, object] | str | None, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer that came through Discord's proxies (`Via`): JSON, a page when `body` is a text, or nothing."""
    via = {"Via": "1.1 google"} | dict(headers or {})
    if body is None:
        return web.Response(status=status, headers=via)
    if isinstance(body, str):
        return web.Response(status=status, text=body, content_type="text/html", headers=via)
    return web.json_response(body, status=status, headers=via)
