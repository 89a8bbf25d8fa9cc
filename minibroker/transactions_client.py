from minibroker.audit import moved

moved(__name__, "minibroker.client.transactions")
