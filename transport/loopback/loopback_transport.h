// A transport within one process, for tests without a network. A loopback transport can pull from every
// loopback transport of the same name in this process.
//
// Thread-safe. Callbacks run on the receiver's thread. Images that are not in place are read on the source's
// serving threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace tensorcast::transport {

struct LoopbackOptions {
  std::string name = "loopback";  // a test may set the name of the lane that the transport replaces
  int serving_threads = 2;
  // GPUs with memory that the transport reads and writes in place. Null: only host memory. Must outlive the
  // transport.
  DeviceRuntime* devices = nullptr;
  // Called before each registration of device memory; may be null. An error fails the registration.
  std::function<absl::Status()> before_register_device;
};

// The returned transport must outlive its pulls and servings.
std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options = {});

}  // namespace tensorcast::transport
