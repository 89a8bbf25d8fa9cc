module minibroker.example/minibroker

go 1.21
