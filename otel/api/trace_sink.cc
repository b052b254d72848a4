#include "otel/api/trace_sink.h"

namespace tensorcast::otel {
namespace {

std::atomic<TraceSink*> sinks[kSinkKinds];

}  // namespace

void InstallTraceSink(SinkKind kind, TraceSink* sink) {
  const uint32_t bit = 1u << static_cast<uint32_t>(kind);
  // The pointer is stored before the bit: a thread that sees the bit finds the sink.
  sinks[static_cast<size_t>(kind)].store(sink, std::memory_order_release);
  if (sink != nullptr) {
    internal::installed_sinks.fetch_or(bit, std::memory_order_release);
  } else {
    internal::installed_sinks.fetch_and(~bit, std::memory_order_release);
  }
}

namespace internal {

TraceSink* InstalledSink(SinkKind kind) {
  return sinks[static_cast<size_t>(kind)].load(std::memory_order_acquire);
}

}  // namespace internal
}  // namespace tensorcast::otel
