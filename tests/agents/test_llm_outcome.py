"""What the errors of model endpoints mean: a table of what vendors send, without a network."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from agentrt import Fail, RetryAfter
from agentrt.agents.llm_outcome import ModelUnavailable, Refusal, outcome, told_wait_s, wait_s_max

now = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
http_now = format_datetime(now, usegmt=True)


def end(status: int, headers: dict[str, str] | None = None, /, **error: object) -> Exception:
    return outcome(Refusal(status, headers or {}, {"error": error}), "small-1 at host")


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "999999"}, 999_999.0),
        ({"retry-after": format_datetime(now + timedelta(seconds=3), usegmt=True), "date": http_now}, 3.0),
        ({"retry-after": format_datetime(now + timedelta(days=3), usegmt=True), "date": http_now}, 3 * 86_400.0),
        ({"retry-after": format_datetime(now - timedelta(seconds=3), usegmt=True), "date": http_now}, None),
        *[({"retry-after": text}, None) for text in ("-1", "0", "soon", "", "nan", "inf", "1e999", "3 s", "٣x")],
        ({}, None),
    ],
)
def test_a_told_wait_is_read_in_every_form_and_rubbish_is_none(headers: dict[str, str], wait_s: float | None) -> None:
    assert told_wait_s(headers, {}) == wait_s


def test_a_date_without_the_server_s_clock_is_measured_by_ours() -> None:
    wait_s = told_wait_s({"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)}, {})
    assert wait_s is not None
    assert 20 < wait_s <= 30


def test_google_hides_the_wait_in_the_body() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "14s"}]
    body = [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota", "details": details}}]
    ended = outcome(Refusal(429, {}, body), "gemini at host")
    assert isinstance(ended, RetryAfter)
    assert 14 <= ended.seconds <= 17


def test_a_quota_per_day_at_google_is_no_rate_limit() -> None:
    violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}
    ended = end(429, {"retry-after": "5"}, status="RESOURCE_EXHAUSTED", details=[{"violations": [violation]}])
    assert isinstance(ended, Fail)


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_wait_reschedules_and_is_cut_to_the_limit(status: int) -> None:
    ended = end(status, {"retry-after": "999999"}, message="slow down")
    assert isinstance(ended, RetryAfter)
    assert wait_s_max <= ended.seconds <= wait_s_max + 10
    ended = end(status, {"retry-after": "10800"}, message="slow down")
    assert isinstance(ended, RetryAfter)
    assert 10_800 <= ended.seconds <= 10_810


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_another_try_may_mend_is_retried_with_backoff(status: int) -> None:
    assert isinstance(end(status, message="maximum context length"), ModelUnavailable)


@pytest.mark.parametrize(
    "code",
    [
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "exceeded_current_quota_error",
    ],
)
@pytest.mark.parametrize("field", ["code", "type"])
def test_a_limit_of_money_is_no_rate_limit(code: str, field: str) -> None:
    ended = end(429, {"retry-after": "1"}, **{field: code}, message="You exceeded your current quota")
    assert isinstance(ended, Fail)
    assert f"(429, {code}: You exceeded your current quota). Top it up" in str(ended)


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (402, {"message": "pay"}, "Top it up"),
        (400, {"message": "Your credit balance is too low to access the API"}, "Top it up"),
        (401, {"code": "invalid_api_key"}, "refuses the key"),
        (403, {"type": "permission_error"}, "refuses the key"),
        (400, {"code": "context_length_exceeded"}, "too long"),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "too long"),
        (400, {"message": "Please reduce the length of the messages."}, "too long"),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "too long"),
        (413, {"type": "request_too_large"}, "too long"),
        (
            400,
            {"type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512, "code": 400},
            "900 tokens, .*512",
        ),
        (404, {"code": "model_not_found", "message": "no such model"}, "does not exist .*no such model"),
        (400, {"message": "bad temperature"}, "refuses the request .*bad temperature"),
        (422, {"message": "bad body"}, "refuses the request .*bad body"),
    ],
)
def test_what_no_try_can_mend_fails_for_good(status: int, error: dict[str, object], reason: str) -> None:
    ended = end(status, **error)
    assert isinstance(ended, Fail)
    with pytest.raises(Fail, match=reason):
        raise ended


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error"}, ModelUnavailable),
        ({"type": "rate_limit_error"}, ModelUnavailable),
        ({"type": "server_error"}, ModelUnavailable),
        ({"message": "something of its own"}, ModelUnavailable),
        ({"code": 503}, ModelUnavailable),
        ({"code": "429", "message": "upstream"}, ModelUnavailable),
        ({"code": "insufficient_quota"}, Fail),
        ({"type": "billing_error"}, Fail),
        ({"type": "authentication_error"}, Fail),
        ({"type": "invalid_request_error"}, Fail),
        ({"code": 400, "message": "bad"}, Fail),
        ({"code": "context_length_exceeded"}, Fail),
    ],
)
def test_an_error_inside_a_stream_counts_as_the_status_that_it_stands_for(error: dict[str, object], kind: type) -> None:
    assert isinstance(end(200, **error), kind)


@pytest.mark.parametrize(
    "body", [None, "", "<html>Bad gateway</html>", [], [1], {}, {"error": "plain"}, {"error": None}, 7]
)
def test_any_body_at_all_has_an_outcome(body: object) -> None:
    assert isinstance(outcome(Refusal(502, {}, body), "x"), ModelUnavailable)
    assert isinstance(outcome(Refusal(400, {}, body), "x"), Fail)


@pytest.mark.parametrize("echo", ["otter-4f9c2b7d1e8a", "sk-proj-abcDEF_123-x", "sk-proj-********wxyz"])
def test_a_key_that_an_endpoint_repeats_is_hidden(monkeypatch: pytest.MonkeyPatch, echo: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "otter-4f9c2b7d1e8a")
    assert str(end(401, message=f"Incorrect API key provided: {echo}.")).count("provided: ***.") == 1
