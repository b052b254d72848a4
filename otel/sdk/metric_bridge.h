// Our catalogue as the SDK's instruments. Includes OpenTelemetry.
#pragma once

#include <memory>

#include "opentelemetry/metrics/meter.h"
#include "opentelemetry/nostd/shared_ptr.h"
#include "opentelemetry/sdk/metrics/meter_provider.h"
#include "otel/api/metrics.h"

namespace tensorcast::otel::sdk {

// The buckets of the catalogue's histograms. Before the first instrument is made.
void AddViews(opentelemetry::sdk::metrics::MeterProvider& provider);

// An instrument for each metric of the catalogue. Must live as long as the provider collects.
std::unique_ptr<MetricSink> MakeMetricSink(
    opentelemetry::nostd::shared_ptr<opentelemetry::metrics::Meter> meter);

}  // namespace tensorcast::otel::sdk
