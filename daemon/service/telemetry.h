// What a transfer's report becomes for those who watch: spans (one a stage and source) and metrics. The
// engine reports once, at the end; nothing here runs while bytes move. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "core/engine/transfer.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {

// A finished ingest: a child of the request that started it, over the time that it took.
void RecordTransfer(const TransferReport& report);

// A pull that this node serves, from its opening to its end. The receiver's pull is its parent.
class ServeRecord {
 public:
  ServeRecord(const otel::TraceContext& parent, std::string_view lane, std::string_view transport_id,
              std::string_view artifact_id);
  // `outcome`: "ok" or "cancelled".
  void End(uint64_t bytes, std::string_view outcome);

 private:
  std::string lane_;
  otel::Span span_;
};

}  // namespace tensorcast::daemon
