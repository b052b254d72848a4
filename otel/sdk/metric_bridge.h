// Makes the SDK's instruments for the metrics of otel/api/metrics_catalogue.h. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/metrics/meter.h"
#include "opentelemetry/nostd/shared_ptr.h"
#include "opentelemetry/sdk/metrics/meter_provider.h"
#include "otel/api/metrics.h"

namespace tensorcast::otel::sdk {

// Sets the buckets of the catalogue's histograms. Call it before the first instrument is made.
void AddViews(opentelemetry::sdk::metrics::MeterProvider& provider);

// Makes an instrument for each metric of the catalogue. The sink must live as long as the provider collects.
std::unique_ptr<MetricSink> MakeMetricSink(
    opentelemetry::nostd::shared_ptr<opentelemetry::metrics::Meter> meter);

}  // namespace tensorcast::otel::sdk
