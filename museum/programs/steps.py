"""Does the steps that come on standard input, and answers each with a line: docs/reference/museum.md."""

import json
import os
import sys

SERVERS, TOPIC = os.environ["BOOTSTRAP_SERVERS"], "orders"
SETTINGS = json.loads(sys.argv[1])


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def told(value, error):
    say(f"nack {value} {error!r}" if error else f"ack {value}")


def follow(client):
    """client: has a method for each step, open(), open(id), begin(), send(value, partition), flush(), …"""
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            getattr(client, word)(*rest)
            say("ok")
        except Exception as error:
            say(f"error {error!r}")
