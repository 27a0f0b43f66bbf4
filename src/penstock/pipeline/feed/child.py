"""The driver's handle on the process that produces a pipeline's streams."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

from penstock.pipeline.feed.process import produced_streams
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.vocabulary.errors import PenstockError, expected

START_TIMEOUT_S = 60.0
RUNS = "the producers run until they are stopped"
STOP_TIMEOUT_S = 20.0


class ProducerProcess:
    """Feeds a pipeline's replayed, generated and file streams from a process of its own.

    In the driver's process, Python's lock would let the driver and the producers delay each other. The
    streams must exist.

    Args:
        config: The pipeline; streams of other kinds are ignored.

    Raises:
        PenstockError: A source cannot be prepared, for example a trace that is no trace.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.progress: dict[str, dict[str, Any]] = {}
        self.error: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        if not produced_streams(config):
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.pipeline.feed.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the driver alone handles a Ctrl-C in the terminal
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="penstock-producers", daemon=True)
        self._thread.start()
        self._send(json.loads(config.to_json()))
        if not self._ready.wait(START_TIMEOUT_S):
            self.error = expected(
                f"the producers are ready within {START_TIMEOUT_S:g} s",
                "nothing",
                "is a trace or a folder of files very large?",
            )
        if self.error is not None:
            self.stop()
            raise PenstockError(self.error)

    @property
    def errors(self) -> dict[str, str]:
        """Errors by stream; an error of the whole process has the key `producers`."""
        found = {name: p["error"] for name, p in self.progress.items() if p["error"] is not None}
        return found if self.error is None else {**found, "producers": self.error}

    @property
    def warnings(self) -> dict[str, str]:
        """Warnings by stream: something is wrong, but the stream goes on."""
        return {name: p["warning"] for name, p in self.progress.items() if p.get("warning") is not None}

    def begin(self, begin_s: float | None = None) -> float:
        """Starts the streams now, or at a time in seconds since the epoch; returns that time."""
        begin_s = time.time() if begin_s is None else begin_s
        self._send({"begin_s": begin_s})
        return begin_s

    def stop(self) -> None:
        """Stops the streams and waits until every row is in the log. A second call is a no-op."""
        if self._process is None or self._stopped:
            return
        self._stopped = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        except BrokenPipeError:
            self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """Ends the process as a crash would; for tests."""
        if self._process is not None:
            self._process.kill()
            self._thread.join()

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                self.error = self.error or expected(RUNS, "an early end", "see above")

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        whole = False
        for line in self._process.stdout:
            message = json.loads(line)
            self.progress = message.get("streams", self.progress)
            self.error = message.get("error", self.error)
            whole = whole or "stopped" in message or "error" in message
            if "ready" in message or "error" in message:
                self._ready.set()
        if not whole and (not self._stopped or self.progress):
            code = self._process.wait()
            self.error = expected(RUNS, f"exit code {code}", "see above")
        self._ready.set()
