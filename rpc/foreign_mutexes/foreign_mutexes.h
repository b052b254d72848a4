// The packaged gRPC links the distribution's Abseil, which checks the order of mutex locks. The check took a
// quarter of a busy global store's CPU, and ends the process if it finds a cycle. This header must not
// include Abseil or our headers, because its source is compiled with the distribution's Abseil.
#pragma once

namespace tensorcast::rpc {

// Turns that check off for the rest of this process. Thread-safe and cheap. Call it before gRPC is used.
void StopCheckingForeignMutexes();

}  // namespace tensorcast::rpc
