// The receiver's side of a loopback pull. Private to this folder.
#pragma once

#include <memory>

#include "transport/loopback/event_loop.h"
#include "transport/loopback/loopback_serving.h"
#include "transport/registered_memory.h"
#include "transport/transport.h"

namespace tensorcast::transport {

// `memory` must outlive the pull.
std::unique_ptr<Pull> NewLoopbackPull(std::shared_ptr<LoopbackSource> source, std::shared_ptr<EventLoop> loop,
                                      const RegisteredMemory* memory);

}  // namespace tensorcast::transport
