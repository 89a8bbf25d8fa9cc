import os

from quixstreams import Application

app = Application(
    broker_address=os.environ["BOOTSTRAP_SERVERS"],
    consumer_group=os.environ["GROUP"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    state_dir=os.environ["STATE_DIR"],
    producer_extra_config={"socket.timeout.ms": 5000},
)
rows = app.dataframe(app.topic(os.environ["INPUT_TOPIC"], key_deserializer="bytes", value_deserializer="bytes"))
rows.apply(lambda value: value.upper()).to_topic(
    app.topic(os.environ["OUTPUT_TOPIC"], key_serializer="bytes", value_serializer="bytes")
)
app.run()
