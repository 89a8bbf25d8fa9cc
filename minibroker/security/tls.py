"""TLS of listeners: keys from PEM or generated, a client's server name (SNI), and the principal of its certificate."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.kernel.extras import hint
from minibroker.security.certificate_names import subject_name

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# The library tells the name once, during the handshake, and forgets it.
_asked_for: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()


def server_context(settings: Settings) -> ssl.SSLContext:
    """The TLS context of SSL and SASL_SSL listeners, unless the certificate is generated. Raises ConfigError naming the
    setting that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    enabled = [_version(name) for name in settings.get_list("ssl.enabled.protocols")]
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    _load_key(context, settings)
    auth = settings.get_string("ssl.client.auth")
    _load_authorities(context, settings, needed=auth == "required")
    context.verify_mode = _CLIENT_AUTH[auth]
    context.sni_callback = _note
    return context


def server_name(ssl_object: Any) -> str:
    """The name that the client of a connection asked for; "" when it gave an address or nothing."""
    return _asked_for.get(ssl_object, "")


def _note(ssl_object: Any, name: str | None, context: ssl.SSLContext) -> None:
    if name:
        _asked_for[ssl_object] = name


def _version(name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise ConfigError(f"ssl.enabled.protocols: {name!r} is none of {', '.join(_VERSIONS)}")
    return _VERSIONS[name]


def _load_key(context: ssl.SSLContext, settings: Settings) -> None:
    key, chain = settings.get("ssl.keystore.key"), settings.get("ssl.keystore.certificate.chain")
    location = settings.get("ssl.keystore.location")
    # Without one, OpenSSL would ask for it on the terminal.
    password = str(settings.get("ssl.key.password") or "")
    if makes_certificate(settings):
        return  # with the start
    if location is None and not (key and chain):
        raise ConfigError(
            "a listener of SSL needs ssl.keystore.location, or ssl.keystore.key with "
            "ssl.keystore.certificate.chain, or minibroker.ssl.ca.location to have a certificate made"
        )
    if location is not None:
        _load_chain(context, str(location), password, f"ssl.keystore.location: {location}")
        return
    # The library reads keys from files only.
    handle, path = tempfile.mkstemp(prefix="minibroker-key-")
    try:
        with os.fdopen(handle, "w", encoding="ascii", errors="replace") as file:
            file.write(f"{key}\n{chain}\n")
        _load_chain(context, path, password, "ssl.keystore.key")
    finally:
        os.unlink(path)


def makes_certificate(settings: Settings) -> bool:
    """Whether no certificate is set, so that one is generated."""
    own_certificate = settings.get("ssl.keystore.location") or (
        settings.get("ssl.keystore.key") and settings.get("ssl.keystore.certificate.chain")
    )
    return not own_certificate and settings.get("minibroker.ssl.ca.location") is not None


def make_certificate(context: ssl.SSLContext, settings: Settings, hosts: Sequence[str]) -> None:
    """Generate a certificate for `hosts`; the CA's is written to minibroker.ssl.ca.location. Raises ConfigError."""
    authority = settings.get_string("minibroker.ssl.ca.location")
    try:
        import trustme
    except ImportError:
        raise ConfigError(hint("minibroker.ssl.ca.location", "trustme")) from None
    made = trustme.CA()
    made.issue_cert(*dict.fromkeys(hosts)).configure_cert(context)
    try:
        made.cert_pem.write_to_path(authority)
    except OSError as error:
        raise ConfigError(
            f"minibroker.ssl.ca.location: {authority} cannot be written: {error.strerror or error}"
        ) from None


def _load_chain(context: ssl.SSLContext, path: str, password: str, setting: str) -> None:
    try:
        context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        reason = error.reason or "no private key with its certificate"
        raise ConfigError(f"{setting} cannot be used as PEM: {reason}") from None
    except OSError as error:
        raise ConfigError(f"{setting} cannot be read: {error.strerror}") from None


def _load_authorities(context: ssl.SSLContext, settings: Settings, *, needed: bool) -> None:
    location, text = settings.get("ssl.truststore.location"), settings.get("ssl.truststore.certificates")
    try:
        if location is not None:
            context.load_verify_locations(str(location))
        elif text is not None:
            context.load_verify_locations(cadata=str(text))
        elif needed:
            raise ConfigError("ssl.client.auth=required needs ssl.truststore.location or ssl.truststore.certificates")
    except ssl.SSLError as error:
        name = "location" if location is not None else "certificates"
        raise ConfigError(f"ssl.truststore.{name} cannot be used as PEM: {error.reason or error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"ssl.truststore.location: {location} cannot be read: {reason}") from None


def principal(connection: Any) -> str:
    """``User:`` and the subject of the client's certificate as Java writes it. Raises ValueError for a certificate that
    Java would not read."""
    certificate = connection.getpeercert(binary_form=True)
    return f"User:{subject_name(certificate)}" if certificate else "User:ANONYMOUS"
