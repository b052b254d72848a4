// A transport within one process, for tests without a network. It uses the pull protocol (transport/pull)
// over channels that post to each other's task loop.
//
// Each loopback transport can pull from every other one of the process with the same name. Copies and
// callbacks run on the receiver's own thread. Reads of images that are not in place run on the source's
// serving threads. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace tensorcast::transport {

struct LoopbackOptions {
  std::string name = "loopback";  // or the name of the lane that the transport replaces in a test
  int serving_threads = 2;
  // The GPUs with memory that the transport reads and writes in place, as a network adapter with direct GPU
  // access does. Null: host memory only. Must outlive the transport.
  DeviceRuntime* devices = nullptr;
  // Called before each registration of device memory; may be null. An error fails the registration.
  std::function<absl::Status()> before_register_device;
};

// REQUIRES: its pulls and servings are destroyed before it.
std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options = {});

}  // namespace tensorcast::transport
