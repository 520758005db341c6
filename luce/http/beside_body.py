"""What a request says beside its body: an expectation or a query parameter that is not served is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from quart import Quart, request

from luce.errors import RequestError, as_param, quoted, shown_name

__all__ = ["QUERY", "install_checks"]

_BETA = frozenset({"beta"})
"""Sent by the beta half of Anthropic's clients; changes nothing."""

QUERY: Mapping[str, frozenset[str]] = {
    "/slots": frozenset({"fail_on_no_slot"}),
    "/ui/trace": frozenset({"skip"}),
    "/v1/messages": _BETA,
    "/v1/messages/count_tokens": _BETA,
}
"""The query parameters that an address takes, by its rule. One that is not listed takes none."""


def install_checks(app: Quart) -> None:
    """Answer 417 to expectations other than 100-continue, which the HTTP library meets, and 400 to query parameters
    that the address does not take. Addresses that are not there stay 404."""

    @app.before_request
    async def check() -> None:
        for expected in request.headers.getlist("Expect"):
            if expected.strip().lower() != "100-continue":
                raise RequestError(
                    f"expect: {quoted(expected)} is not met; only 100-continue is", field="expect", status=417
                )
        if request.url_rule is not None:
            _check_query(request.method, request.url_rule.rule, list(request.args))
            for name in request.args:
                if len(request.args.getlist(name)) > 1:
                    raise RequestError(f"{name} is given twice", field=name, code="duplicate_field")


def _check_query(method: str, rule: str, given: list[str]) -> None:
    taken = QUERY.get(rule, frozenset())
    for name in given:
        if name not in taken:
            takes = f"takes {', '.join(sorted(taken))}" if taken else "takes none"
            hint = "; what is asked for goes into the body" if method == "POST" else ""
            raise RequestError(
                f"{shown_name(name)} is not a query parameter of {rule}, which {takes}{hint}",
                field=as_param(name),
                code="unknown_parameter",
            )
