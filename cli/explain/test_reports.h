// Reports for this folder's tests, on a time axis of milliseconds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::explain {

inline SteadyTime At(int ms) { return SteadyTime() + absl::Seconds(1'700'000'000) + absl::Milliseconds(ms); }

inline StageReport MakeStage(Stage stage, const std::string& lane, const std::string& source, int from_ms,
                             int to_ms, int busy_ms, uint64_t bytes) {
  StageReport report{.stage = stage, .bytes = bytes, .chunks = 4};
  report.source = {.type = lane == "disk" ? SourceType::kDisk : SourceType::kRemote,
                   .lane = lane,
                   .name = source,
                   .grant_id = lane == "disk" ? "" : "transport-" + source};
  report.start = At(from_ms);
  report.end = At(to_ms);
  report.busy = absl::Milliseconds(busy_ms);
  return report;
}

// 64 MB to gpu:0 in 100 ms: 10 in the queue, 10 to start, 70 moving, 10 to finish. Fetching bounds it.
inline TransferReport MakeReport() {
  TransferReport report{.transfer_id = "11aa22bb-0000-4000-8000-000000000001",
                        .artifact_id = "tc2:abc",
                        .replica_id = "99ff0000-0000-4000-8000-000000000001",
                        .destination = {LocationKind::kGpu, 0},
                        .bytes = 64'000'000,
                        .bytes_total = 64'000'000,
                        .queued = At(0),
                        .start = At(10),
                        .end = At(100),
                        .verified_chunks = 4};
  report.stages = {MakeStage(Stage::kFetch, "ucx", "node-0", 20, 80, 150, 64'000'000),
                   MakeStage(Stage::kVerify, "ucx", "node-0", 30, 85, 20, 64'000'000),
                   MakeStage(Stage::kPlace, "ucx", "node-0", 40, 90, 30, 64'000'000)};
  return report;
}

}  // namespace tensorcast::explain
