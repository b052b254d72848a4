// Random faults in a cluster of real processes. Each round runs one operation in a client process, kills or
// stops one of the participants at a random moment, lets the cluster recover, and checks the invariants
// (invariants.h). The seed determines the schedule; the moments are in wall-clock time. Run it on a thread
// that outlives the cluster (main).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"

namespace tensorcast::chaos {

struct ChaosOptions {
  std::string binary;         // the tensorcast executable
  std::string victim_binary;  // chaos_victim
  uint64_t seed = 1;
  int faults = 25;
  int daemons = 4;                            // at least kMinDaemons
  int global_stores = 1;                      // several share an etcd of three members
  uint64_t model_bytes = uint64_t{16} << 20;  // small, since a hundred rounds mostly cost the time of
                                              // recovery
  int liars = 0;  // nodes that claim replicas of everything and accuse those of other nodes (liar.h)
  absl::Duration budget = absl::InfiniteDuration();  // no round begins after it
  std::FILE* out = stdout;
};

inline constexpr char kBaseKey[] = "base";
inline constexpr char kBaseModel[] = "base.safetensors";  // in the folder of all models

// The GPUs of chaos and of its clients: the host's, or fake ones if it has none. Each daemon gets one.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenDevices();

// Prints what it did and which invariants held. Stops at the first broken invariant; the message has the
// processes' logs.
absl::Status RunChaos(const ChaosOptions& options);

}  // namespace tensorcast::chaos
