"""The command `minibroker proxy`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from minibroker.client.connection import servers
from minibroker.client.security import add_command_config
from minibroker.config.settings import parse_assignment
from minibroker.exit_codes import EXIT_OK
from minibroker.kernel.arguments import local_path
from minibroker.output import say
from minibroker.proxy.options import DEFAULT_HOST, ProxyOptions, parse_node_ports, proxy_options
from minibroker.server.serving import (
    add_life,
    add_token_file,
    control_address,
    control_token,
    run_service,
    running,
    say_control,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Stand in front of a running cluster: clients of the proxy reach its brokers, and faults act on what they say. "
        "Prints bootstrap.servers=HOST:PORT once it serves."
    )
    parser.add_argument(
        "--upstream", required=True, type=servers, metavar="HOST:PORT[,…]", help="some brokers of the cluster"
    )
    add_command_config(parser)
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="PORT",
        help="of the listener that reaches any broker; each broker's own take the next ones (default: free ones)",
    )
    parser.add_argument(
        "--ports",
        type=node_ports,
        metavar="ID=PORT[,…]",
        help="of the listeners of these brokers, which they then have after a restart too",
    )
    parser.add_argument(
        "--advertised-host",
        default="",
        metavar="HOST",
        help="where clients reach the listeners, in answers to them (default: the address that a client came to)",
    )
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the listeners: minibroker.security.protocol=SSL, ssl.…, max.connections, …",
    )
    parser.add_argument(
        "--control", metavar="HOST:PORT", help="serve the control API: faults and exchanges (default: off)"
    )
    add_token_file(parser)
    parser.add_argument("--page", action="store_true", help="show requests live in a browser (default: off)")
    parser.add_argument(
        "--record",
        type=local_path,
        metavar="FILE",
        help="write every exchange, for `replay` and `trace view`; at 100 MB FILE becomes FILE.1 (default: off)",
    )
    parser.add_argument(
        "--record-no-contents", action="store_true", help="leave keys and values of records out of that file"
    )
    add_life(parser)


def node_ports(text: str) -> dict[int, int]:
    """As argparse wants it. Raises ArgumentTypeError."""
    try:
        return parse_node_ports(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives. Exit status: 0 after a clean end, 1 if the proxy could not start, 2 for options
    that make no sense."""
    from minibroker.server.proxy_service import ProxyService

    return run_service(arguments, lambda: ProxyService(_options(arguments)), _serve)


def _options(arguments: argparse.Namespace) -> ProxyOptions:
    return proxy_options(
        arguments.upstream,
        command_config=arguments.command_config,
        host=arguments.host,
        port=arguments.port,
        ports=arguments.ports,
        advertised_host=arguments.advertised_host,
        config=dict(parse_assignment(text) for text in arguments.config),
        control=control_address(arguments),
        control_token=control_token(arguments.control_token_file),
        page=arguments.page,
        record=arguments.record,
        record_contents=not arguments.record_no_contents,
    )


async def _serve(service: Any, arguments: argparse.Namespace) -> int:
    async with running(service, arguments, whole_start=False) as stopping:
        say(f"bootstrap.servers={service.bootstrap_servers}")
        say_control(service)
        sys.stdout.flush()
        await stopping.wait()
    return EXIT_OK
