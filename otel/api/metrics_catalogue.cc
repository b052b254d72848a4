#include "otel/api/metrics_catalogue.h"

namespace tensorcast::otel {
namespace {

#define TC_LABEL_KEYS(...) {__VA_ARGS__}

// The catalogue is in the order of MetricId, which is an index into it.
constexpr MetricInfo kCatalogue[] = {
#define X(kind, labels, name, text, unit, buckets, keys, description) \
  MetricInfo{text, MetricKind::k##kind, unit, description, Buckets::buckets, {TC_LABEL_KEYS keys}, labels},
    TENSORCAST_METRICS(X)
#undef X
};

// From 100 us (an attach, a small RPC) to ten minutes (a cold terabyte), about three a decade.
constexpr double kSecondsBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,     1,      2.5,   5,      10,    25,   60,    180,  600};
// From 10 MB/s (something is wrong) to 800 GB/s (NVLink).
constexpr double kRateBounds[] = {1e7,  3e7,    1e8,  2e8,    5e8,  1e9,  2e9,  4e9,  6e9, 8e9,
                                  1e10, 1.5e10, 2e10, 2.5e10, 5e10, 1e11, 2e11, 4e11, 8e11};

}  // namespace

std::span<const MetricInfo> MetricsCatalogue() { return kCatalogue; }

std::span<const double> BucketBounds(Buckets buckets) {
  switch (buckets) {
    case Buckets::kNone:
      return {};
    case Buckets::kSeconds:
      return kSecondsBounds;
    case Buckets::kRate:
      return kRateBounds;
  }
  return {};
}

}  // namespace tensorcast::otel
