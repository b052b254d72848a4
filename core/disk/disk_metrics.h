// The metrics of the disk tier's operations: tc_disk_operation_seconds and tc_disk_errors_total. Internal to
// this folder.
#pragma once

#include <string_view>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {

// Measures one operation, from the construction to End. While metrics are off, a measurement costs one
// branch. Thread-compatible.
class DiskOperation {
 public:
  explicit DiskOperation(std::string_view name) : name_(name) {
    if (otel::IsMeasuring()) [[unlikely]]
      start_ = SteadyNow();
  }

  void End(bool ok) const {
    if (start_ == SteadyTime::InfinitePast()) return;
    if (ok) {
      otel::metrics::kDiskOperationSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - start_), {name_});
    } else {
      otel::metrics::kDiskErrors.Add(1, {name_});
    }
  }

 private:
  const std::string_view name_;  // "pack", "read", "scan", "remove"
  SteadyTime start_ = SteadyTime::InfinitePast();
};

}  // namespace tensorcast
