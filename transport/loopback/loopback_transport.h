// The transport within one process: a pull copies straight out of the serving's memory. It is the reference
// for what transport.h promises, and lets everything above it be tested without a network.
//
// Servings of all LoopbackTransports of the process share one registry, so any of them can pull from any
// other. Copies and callbacks run on the receiver's own thread, reads of images that are not in place on the
// source's serving threads. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace tensorcast::transport {

struct LoopbackOptions {
  std::string name = "loopback";  // or that of a lane which it stands in for
  int serving_threads = 2;
  // GPUs with memory that it reads and writes in place, as a network card with direct GPU access does; null:
  // host memory only.
  DeviceRuntime* devices = nullptr;
  // Of each registration of device memory; may be null. An error is its end.
  std::function<absl::Status()> before_register_device;
};

// REQUIRES: its pulls and servings are destroyed before it.
std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options = {});

}  // namespace tensorcast::transport
