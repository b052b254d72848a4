// The bottlenecks that `bench explain` makes on purpose, each with the cause and the hop that explain should
// name. A new kind is an entry of AllBottlenecks. Main thread only, as all that starts processes.
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
  kDisk,     // a file on a device of its own
  kObjects,  // an object store behind a link of its own
};

// What one measurement starts.
struct Plan {
  Scene scene = Scene::kPull;
  uint64_t bytes = 0;          // of the artifact
  absl::Duration undisturbed;  // what the transfer takes without a bottleneck; zero: this is measured now
  bool tls = false;            // between the nodes
  int others = 0;              // nodes that get artifacts of their own from kGiver at the same time
  std::vector<std::string> giver_settings;
  std::vector<std::string> taker_settings;

  // Bytes a second that make the transfer take 1 / (1 - strength) of its undisturbed time.
  uint64_t RateFor(double strength) const;
};

// What runs when a bottleneck begins.
struct Running {
  const Plan* plan = nullptr;
  Network* network = nullptr;
  LocalCluster* processes = nullptr;
  SlowDisk* disk = nullptr;  // with the file; null but for kDisk
};

// Goes on until it is destroyed.
class Disturbance {
 public:
  virtual ~Disturbance() = default;
};

struct Bottleneck {
  std::string_view name;
  std::vector<Scene> scenes;  // where it can be made; alone, it is made in each
  std::string_view cause;     // explain::Cause::name
  // The node that the bounding hop comes from; "": kTaker itself; not set: any.
  std::optional<std::string_view> from;
  void (*prepare)(double strength, Plan& plan) = nullptr;
  absl::StatusOr<std::unique_ptr<Disturbance>> (*begin)(double strength, const Running& running) = nullptr;
  // Another one, of a strength of its own, that has to be there for this one to cost time; empty: none.
  std::string_view beside = {};
  bool is_drawn = true;  // false: it is there beside another one alone
};

std::span<const Bottleneck> AllBottlenecks();
// Null: there is none of that name.
const Bottleneck* FindBottleneck(std::string_view name);

}  // namespace tensorcast::bench
