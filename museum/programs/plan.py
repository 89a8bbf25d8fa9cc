"""Goes through the plan of a case, and writes the history. The words of a plan: docs/museum.md."""

import json
import os
import sys

SERVERS = os.environ["BOOTSTRAP_SERVERS"]
SETTINGS = json.loads(sys.argv[1])
TOPIC = "orders"


def tell(event, **more):
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as history:
        history.write(json.dumps({"event": event, "topic": TOPIC, **more}) + "\n")


def follow(client):
    """client: open(id), begin(), send(value, partition, acked), flush(), commit(), abort(), sleep(seconds)."""
    steps, identity, transaction = iter(sys.argv[2:]), None, -1
    for step in steps:
        word, _, what = step.partition(" ")
        try:
            if word == "open":
                identity = what
                opened(client, identity)
            elif word == "begin":
                transaction += 1
                client.begin()
            elif word in ("send", "insist"):
                value, _, partition = what.partition("@")
                tell("send", value=value, **({"transaction": transaction} if identity else {}))
                send(client, value, int(partition or 0), insist=word == "insist")
            elif word == "transact":
                transaction = transact(client, what, transaction)
            elif word == "sleep":
                client.sleep(float(what))
            else:
                getattr(client, word)()
                if word in ("commit", "abort"):
                    tell("end", transaction=transaction, outcome=word)
        except Exception as error:
            print(f"{step}: {error!r}", flush=True)
            if identity:
                given_up(client, identity, transaction, steps if word not in ("commit", "abort") else ())


def opened(client, identity):
    while True:
        try:
            return client.open(identity)
        except Exception as error:
            print(f"open: {error!r}", flush=True)


def send(client, value, partition, *, insist):
    done = []

    def acked():
        done.append(value)
        tell("ack", value=value)

    client.send(value, partition, acked)
    while insist and not done:
        try:
            client.flush()
        except Exception as error:
            print(f"{value}: {error!r}", flush=True)
        if not done:
            client.sleep(0.3)
            client.send(value, partition, acked)


def transact(client, value, transaction):
    """One record in a transaction, on the same producer until it is committed; the number of the last transaction."""
    while True:
        transaction += 1
        try:
            client.begin()
            tell("send", value=f"{value}.{transaction}", transaction=transaction)
            client.send(f"{value}.{transaction}", 0, lambda: None)
            client.commit()
            tell("end", transaction=transaction, outcome="commit")
            return transaction
        except Exception as error:
            print(f"{value}: {error!r}", flush=True)
        try:
            client.abort()
            tell("end", transaction=transaction, outcome="abort")
        except Exception as error:
            print(f"abort: {error!r}", flush=True)
            client.sleep(0.3)


def given_up(client, identity, transaction, steps):
    """The rest of the transaction is left out; it is aborted, or its producer replaced by a new one."""
    try:
        client.abort()
        tell("end", transaction=transaction, outcome="abort")
    except Exception as error:
        print(f"abort: {error!r}", flush=True)
        opened(client, identity)
    for step in steps:
        if step in ("commit", "abort"):
            break
