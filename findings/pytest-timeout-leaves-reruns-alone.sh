#!/usr/bin/env bash
# pytest 9.1.1, pytest-timeout 2.4.0 and pytest-rerunfailures 16.7 (Python 3, Linux).
# Expected: with `--timeout=1 --reruns=1` each attempt of a test that sleeps three seconds ends after one.
# Seen: with the default method (a signal) the timer acts on the first attempt only. The second has no limit, sleeps to its
# end and passes, so that a test that never returned would never be ended. `--rerun-except 'Timeout [(]>'` leaves such a
# test failed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_packages pytest==9.1.1 pytest-timeout==2.4.0 pytest-rerunfailures==16.7
cat > test_slow.py << 'PYTHON'
import time


def test_slow():
    begun = time.monotonic()
    try:
        time.sleep(3)
    finally:
        print("slept", round(time.monotonic() - begun))
PYTHON
attempts() {
    env/bin/python -m pytest -p no:cacheprovider -s -q --timeout=1 --reruns=1 "$@" test_slow.py > out 2> log || true
    grep -oE "slept [0-9]|[0-9]+ (passed|failed)(, [0-9]+ rerun)?" out
}
{ attempts; echo; attempts --rerun-except 'Timeout [(]>'; } > seen
same seen << 'EXPECTED'
slept 1
slept 3
1 passed, 1 rerun

slept 1
1 failed
EXPECTED
