// For sinks, which are never destroyed: see trace_sink.h. Standard library only.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace tensorcast::otel {

// Owns the object for the rest of the process. It stays reachable, so that leak checkers see that this is
// meant. Thread-safe.
template <class T>
T* KeepForever(std::unique_ptr<T> object) {
  struct Kept {
    std::unique_ptr<T> object;
    Kept* next;
  };
  static std::atomic<Kept*> kept{nullptr};
  auto* node = new Kept{std::move(object), kept.load()};
  while (!kept.compare_exchange_weak(node->next, node)) {
  }
  return node->object.get();
}

}  // namespace tensorcast::otel
