"""A request through a small server, traced with OpenTelemetry and written as OTLP/JSON lines.

    python otel.py OUT.jsonl
"""

import sys
import time

from opentelemetry import trace
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def main() -> None:
    provider = TracerProvider(resource=Resource({"service.name": "engine", "process.pid": 4242}))
    with open(sys.argv[1], "w") as file:
        provider.add_span_processor(BatchSpanProcessor(FileSpanExporter(stream=file), max_export_batch_size=16))
        tracer = provider.get_tracer("engine.http")
        for request in range(12):
            with tracer.start_as_current_span("llm_request", kind=trace.SpanKind.SERVER) as span:
                span.set_attribute("gen_ai.request.max_tokens", 16)
                span.set_attribute("thread.id", 4242)
                span.set_attribute("thread.name", "MainThread")
                with tracer.start_as_current_span("prefill"):
                    time.sleep(0.002)
                for _ in range(3):
                    with tracer.start_as_current_span("decode"):
                        time.sleep(0.001 + 0.004 * (request == 7))
        provider.shutdown()


main()
