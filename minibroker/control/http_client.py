"""Commands over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.outside_json import parse_json
from minibroker.kernel.words import reason
from minibroker_protocol.errors import ApiError, ErrorCode

_SLACK_SECONDS = 30.0


class ControlError(Exception):
    """The control API could not run the command; the text is one line that says why."""


class HttpCaller:
    """Commands of a broker that was started with ``--control``. address: ``HOST:PORT`` or a URL of these."""

    def __init__(self, address: str, token: str) -> None:
        try:
            parts = urlsplit(address if "//" in address else f"//{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme not in ("", "http"):
            raise FaultError(f"the control address is HOST:PORT, not {address!r}")
        self._host, self._port = host, port
        self._token = token

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one command. Raises FaultError, ApiError as the broker does, ControlError for the rest."""
        waiting = arguments.get("timeout_ms", 0)
        timeout = _SLACK_SECONDS + (waiting / 1000 if isinstance(waiting, (int, float)) else 0)
        return self._ask("POST", f"/v1/{quote(name.replace('.', '/'))}", json.dumps(dict(arguments)), timeout)

    def description(self) -> Any:
        """The OpenAPI description of the commands."""
        return self._ask("GET", "/v1/openapi.json", None, _SLACK_SECONDS)

    def _ask(self, method: str, path: str, body: str | None, timeout: float) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = parse_json(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ControlError(
                f"no answer from the control API at {self._host}:{self._port}: {reason(error)}"
            ) from None
        finally:
            connection.close()
        if response.status == 200:
            return answer["result"]
        code, message = answer["error"]["code"], answer["error"]["message"]
        if response.status == 400:
            raise FaultError(message)
        if response.status == 409 and code in ErrorCode.__members__:
            raise ApiError(ErrorCode[code], message)
        raise ControlError(f"{message} ({response.status})")
