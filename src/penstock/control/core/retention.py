"""Trims logs behind the slowest registered reader, now and then."""

from __future__ import annotations

from penstock.control.core.governor import Governor

EVERY_S = 10.0


class Trimmer:
    """Trims the logs of a governor's readers; a stream without registered readers keeps everything."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self._last_s = governor.timer()

    def beat(self) -> None:
        if self.governor.timer() - self._last_s < EVERY_S or not self.governor.config.trim:
            return
        from penstock.streams.registry import ReaderRegistry

        self._last_s = self.governor.timer()
        for log in {reader.log.directory: reader.log for reader in self.governor.readers.values()}.values():
            ReaderRegistry(log).trim()
