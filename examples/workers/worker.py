"""A worker in Python, without any package: squares numbers.

python3 worker.py http://127.0.0.1:8080 square        (a token in ROUNDTRIP_TOKEN)
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

if len(sys.argv) != 3:
    raise SystemExit(__doc__)
URL, ROUTE = sys.argv[1].rstrip("/"), sys.argv[2]
KEEP_EVERY_S = 10  # well within the route's lease time
stopping = threading.Event()


class Never(Exception):
    """It will never succeed."""


class Elsewhere(Exception):
    """It was done before, and nobody here knows with what."""


def call(path, body):
    """Posts JSON, and comes again until it is answered; refused calls end the worker."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("ROUNDTRIP_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    wait = 0.05
    while True:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 429 and error.code < 500:
                raise SystemExit(f"refused: {error.read().decode()}")
        except OSError:
            pass  # The program is away, or the answer was lost.
        time.sleep(wait)
        wait = min(wait * 2, 5)


def handle(job):
    """The work itself."""
    payload = job["payload"]
    if payload.get("fail_once") and job["attempt"] == 1:
        raise RuntimeError("not at the first attempt")
    if when := payload.get("done"):
        raise Elsewhere(f"done {when}")
    if not isinstance(payload.get("n"), int):
        raise Never("n is no whole number")
    return {"square": payload["n"] ** 2}


def work_on(job):
    held = {"id": job["id"], "token": job["token"]}
    done = threading.Event()

    def keep():
        while not done.wait(KEEP_EVERY_S):
            call("/v1/work/extend", {"jobs": [held]})

    keeping = threading.Thread(target=keep, daemon=True)
    keeping.start()
    try:
        response = handle(job)
    except Exception as error:  # whatever it is, the program should know
        then = {Never: "dead", Elsewhere: "elsewhere"}.get(type(error), "retry")
        call("/v1/work/fail", {"jobs": [held | {"error": str(error), "then": then}]})
    else:
        call("/v1/work/answer", {"jobs": [held | {"response": response}]})
    finally:
        done.set()


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        # One at a time, as it works: the lease of one that lies in wait would run out.
        leased = call("/v1/work/lease", {"route": ROUTE, "worker": "python", "max": 1, "wait_ms": 1000})
        for job in leased["jobs"]:
            work_on(job)


main()
