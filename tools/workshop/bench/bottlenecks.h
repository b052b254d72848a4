// The bottlenecks that `bench explain` makes, each with the cause and the hop that explain should name. A new
// kind is an entry of AllBottlenecks. Main thread only, like all code that starts processes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/workshop/bench/slow_disk.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {

inline constexpr int kGiver = 0;
inline constexpr int kTaker = 1;  // its transfer is explained

// Where the bytes come from.
enum class Scene : uint8_t {
  kPull,     // kGiver, over tcp
  kSwarm,    // kGiver, over tcp, while two other nodes get the same artifact
  kDisk,     // a file on a separate device
  kObjects,  // an object store behind a separate link
};

// The setup of one measurement.
struct Plan {
  Scene scene = Scene::kPull;
  uint64_t bytes = 0;          // of the artifact
  absl::Duration undisturbed;  // time of the transfer without a bottleneck; zero: this run measures it
  bool tls = false;            // between the nodes
  int others = 0;              // nodes that get other artifacts from kGiver at the same time
  // Another replica fills kTaker's pool, and is in use for so long from the start of the transfer; zero:
  // none.
  absl::Duration pool_in_use;
  std::vector<std::string> giver_settings;
  std::vector<std::string> taker_settings;

  // The rate, in bytes per second, at which the transfer takes 1 / (1 - strength) of its undisturbed time.
  uint64_t RateFor(double strength) const;
};

// The running parts when a bottleneck begins.
struct Running {
  const Plan* plan = nullptr;
  Network* network = nullptr;
  LocalCluster* processes = nullptr;
  SlowDisk* disk = nullptr;  // with the file; null except for kDisk
};

// Lasts until it is destroyed.
class Disturbance {
 public:
  virtual ~Disturbance() = default;
};

struct Bottleneck {
  std::string_view name;
  std::vector<Scene> scenes;  // where it can be made; a single one is made in each
  std::string_view cause;     // explain::Cause::name
  // The node from which the bounding hop comes; "": kTaker itself; not set: any.
  std::optional<std::string_view> from;
  void (*prepare)(double strength, Plan& plan) = nullptr;
  absl::StatusOr<std::unique_ptr<Disturbance>> (*begin)(double strength, const Running& running) = nullptr;
  // Another bottleneck, with its own strength, without which this one costs no time; empty: none.
  std::string_view beside = {};
  bool is_drawn = true;            // false: it only occurs beside another one
  std::string_view replaces = {};  // one of the same link, which would cost no time beside this one
};

std::span<const Bottleneck> AllBottlenecks();
// Null: no bottleneck has this name.
const Bottleneck* FindBottleneck(std::string_view name);

}  // namespace tensorcast::bench
