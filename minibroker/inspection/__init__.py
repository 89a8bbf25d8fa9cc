"""Looking into data directories without a broker: print files, verify directories. Nothing is changed."""
