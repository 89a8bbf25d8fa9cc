import os
import time

from pyspark.errors import StreamingQueryException

from minibroker_pipeline.session import open_session
from minibroker_pipeline.topic_sink import exactly_once
from minibroker_pipeline.topic_source import register

bootstrap = os.environ["BOOTSTRAP_SERVERS"]
quick_start = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark, _ = open_session("local[2]", ["spark.driver.memory=512m", quick_start])
register(spark)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": os.environ["INPUT_TOPIC"]}
rows = spark.readStream.format("kafka-topics").options(**options).load()
copies = rows.selectExpr("key", "upper(cast(value as string)) value")
writer = exactly_once(
    copies, os.environ["OUTPUT_TOPIC"], bootstrap=bootstrap, sink=os.environ["GROUP"], transactionTimeoutMs=120_000
)
writer = writer.option("checkpointLocation", os.environ["STATE_DIR"] + "/checkpoint")
while True:  # a batch that failed is tried again when the query is started again
    try:
        writer.trigger(processingTime="200 milliseconds").start().awaitTermination()
    except StreamingQueryException as error:
        print(error, flush=True)
        time.sleep(1)
