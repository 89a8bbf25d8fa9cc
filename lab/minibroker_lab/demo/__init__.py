"""`minibroker demo`: the consume-transform-produce loop of KIP-447 under aborts, a zombie and a killed member."""
