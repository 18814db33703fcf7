"""The metrics that are exported by OTLP are those of ``/-/metrics``."""

import anyio
import pytest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

import shoal
from handlers import double
from shoal.observe import export_metrics
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time


class Kept(MetricExporter):
    """Keeps what is exported."""

    def __init__(self, error=None):
        super().__init__()
        self.exported = []
        self.error = error
        self.is_shut_down = False

    def export(self, metrics_data, timeout_millis=10_000, **_):
        if self.error is not None:
            raise self.error
        self.exported.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **_):
        self.is_shut_down = True

    def points(self):
        """What was exported last: the value of each point, by name and labels."""
        (of_resource,) = self.exported[-1].resource_metrics
        (of_scope,) = of_resource.scope_metrics
        return {
            (metric.name, *sorted(point.attributes.items())): point
            for metric in of_scope.metrics
            for point in metric.data.data_points
        }


FINISHED = (("backend", "double"), ("method", "__call__"), ("outcome", "finished"))


async def exported(target, exporter):
    """Exports once, at the end."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: export_metrics(target, exporter=exporter, interval_s=3600))
        await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert exporter.is_shut_down


async def test_they_are_those_that_prometheus_reads():
    app = shoal.App()
    app.endpoint("/double", name="double")(double)
    async with app.lifespan():
        for item in range(3):
            await ask(app, "/double", item)
        exporter = Kept()
        await exported(app, exporter)
        points = exporter.points()
        families = list(app.metrics.collect())
    count = 0
    for family in families:
        if family.name.startswith("process_"):
            continue  # they change meanwhile
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            point = points[(family.name, *labels)]
            if family.type != "histogram":
                assert point.value == sample.value
            elif sample.name.endswith("_sum"):
                assert point.sum == sample.value
            elif sample.name.endswith("_count"):
                assert point.count == sample.value
            else:
                bounds = [*point.explicit_bounds, float("inf")]
                upto = bounds.index(float(sample.labels["le"])) + 1
                assert sum(point.bucket_counts[:upto]) == sample.value
            count += 1
    assert count > 50
    assert points["shoal_requests", *FINISHED].value == 3
    assert len(exporter.exported) == 1


async def test_those_of_a_batcher_and_of_a_controller_are_exported_too():
    batcher = shoal.Batcher(double, name="double")
    async with batcher as call:
        await call(1)
        await exported(batcher, exporter := Kept())
    assert exporter.points()["shoal_requests", *FINISHED].value == 1
    async with shoal.start() as client:
        await client.create_backend("double", double)
        await exported(client, exporter := Kept())
    assert exporter.points()["shoal_wanted_replicas", ("backend", "double")].value == 1


async def test_an_exporter_that_fails_ends_nothing(caplog):
    await exported(shoal.Batcher(double), Kept(ZeroDivisionError()))
    assert "the metrics were not exported: ZeroDivisionError" in caplog.text


async def test_what_can_not_be_exported_is_said(monkeypatch):
    with pytest.raises(TypeError, match=r"takes a shoal\.App, shoal\.Controller or shoal\.Batcher"):
        await export_metrics(1)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    with pytest.raises(ValueError, match="must be a number of milliseconds, not 'soon'"):
        await export_metrics(shoal.Batcher(double), exporter=Kept())
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    await export_metrics(shoal.Batcher(double))
