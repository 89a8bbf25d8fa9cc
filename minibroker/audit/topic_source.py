from minibroker.audit import moved

moved(__name__, "minibroker_pipeline.topic_source")
