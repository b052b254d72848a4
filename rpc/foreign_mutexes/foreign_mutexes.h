// gRPC, as it is packaged, brings an Abseil of the distribution's beside the one that we link, and that one
// is compiled with its check of the order in which mutexes are locked: a graph that is searched at each lock,
// which took a quarter of a busy global store's CPU, and which ends the process where it finds a cycle. No
// Abseil header and no type of ours here: the source behind it sees the distribution's Abseil.
#pragma once

namespace tensorcast::rpc {

// Turns that check off in this process, for good. Thread-safe and cheap; to be called before gRPC is used.
void StopCheckingForeignMutexes();

}  // namespace tensorcast::rpc
