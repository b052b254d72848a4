// The packaged gRPC brings the distribution's Abseil beside the one that we link. That Abseil is compiled
// with a check of the order in which mutexes are locked: it searches a graph at each lock, which took a
// quarter of a busy global store's CPU, and ends the process if it finds a cycle. This header includes no
// Abseil header and no type of ours: its source sees the distribution's Abseil.
#pragma once

namespace tensorcast::rpc {

// Turns that check off in this process, for good. Thread-safe and cheap; call it before gRPC is used.
void StopCheckingForeignMutexes();

}  // namespace tensorcast::rpc
