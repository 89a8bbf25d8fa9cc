import os
import sys

import faust

app = faust.App(
    os.environ["GROUP"],
    broker="kafka://" + os.environ["BOOTSTRAP_SERVERS"],
    processing_guarantee="exactly_once",
    datadir=os.environ["STATE_DIR"],
    topic_disable_leader=True,
    broker_commit_interval=0.2,
)
source = app.topic(os.environ["INPUT_TOPIC"], key_type=bytes, value_type=bytes, value_serializer="raw")
target = app.topic(os.environ["OUTPUT_TOPIC"], key_type=bytes, value_type=bytes, value_serializer="raw")


@app.agent(source)
async def copy(records):
    async for key, value in records.items():
        await target.send(key=key, value=value.upper())


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "info"]
    app.main()
