// The packaged gRPC links the distribution's Abseil, beside our own Abseil. The distribution's Abseil is
// compiled with a check of the order in which mutexes are locked. The check searches a graph at each lock,
// which took a quarter of a busy global store's CPU, and ends the process if it finds a cycle. This header
// must not include Abseil or any of our headers, because its source is compiled with the distribution's
// Abseil.
#pragma once

namespace tensorcast::rpc {

// Turns that check off for the rest of this process. Thread-safe and cheap. Call it before gRPC is used.
void StopCheckingForeignMutexes();

}  // namespace tensorcast::rpc
