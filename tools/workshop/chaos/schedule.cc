#include "tools/workshop/chaos/schedule.h"

namespace tensorcast::chaos {
namespace {

// Longer than the peer timeout of the cluster now and then, so that both its sides are met.
constexpr int kLongestStopMs = 800;
constexpr double kLatestMoment = 1.2;
// Longer than the lease of a leader, now and then.
constexpr int kLongestStopOfStoreMs = 5000;

// Only the raw generator is the same everywhere; the standard distributions are not.
uint64_t Below(std::mt19937_64& random, uint64_t limit) { return random() % limit; }

}  // namespace

const std::vector<Operation>& Operations() {
  static const auto* const operations = new std::vector<Operation>{
      {.name = "put", .verb = "put", .node = 1, .writes = true, .source_is_receiver = true},
      {.name = "durable put", .verb = "durable-put", .node = 1, .writes = true, .source_is_receiver = true},
      {.name = "import", .verb = "import", .node = 1, .writes = true, .source_is_receiver = true},
      {.name = "tcp get", .verb = "get", .node = 1, .lane = "tcp"},
      {.name = "cancelled get", .verb = "cancelled-get", .node = 1, .lane = "tcp"},
      {.name = "partial get", .verb = "partial-get", .node = 2},
      {.name = "fan-out", .verb = "get", .node = 2, .fans_out = true},
      {.name = "partial fan-out", .verb = "partial-get", .node = 2, .fans_out = true},
      {.name = "cancelled fan-out", .verb = "cancelled-get", .node = 2, .fans_out = true},
      {.name = "tcp get to a GPU", .verb = "get", .node = 1, .location = "gpu:0", .lane = "tcp"},
      {.name = "local get", .verb = "get", .node = 1, .lane = "local"},
      {.name = "disk get",
       .verb = "get",
       .node = 0,
       .lane = "disk",
       .drop_base_replica = true,
       .source_is_receiver = true},
      {.name = "next version",
       .verb = "next-version",
       .node = 0,
       .writes = true,
       .source_is_receiver = true,
       .fans_out = true,
       .by_difference = true},
      {.name = "attach", .verb = "attach", .node = 0, .source_is_receiver = true},
  };
  return *operations;
}

std::string_view Name(Victim victim) {
  switch (victim) {
    case Victim::kSource:
      return "the source";
    case Victim::kReceiver:
      return "the receiver";
    case Victim::kClient:
      return "the client";
    case Victim::kGlobalStore:
      return "the global store";
    case Victim::kOtherReceiver:
      return "another receiver";
    case Victim::kEtcd:
      return "a member of etcd";
  }
  return "?";
}

// Each value is drawn whether it is used or not, so that every fault takes the same number of draws.
Fault DrawFault(std::mt19937_64& random) {
  const std::vector<Operation>& operations = Operations();
  Fault fault = {};
  fault.operation = &operations[Below(random, operations.size())];
  constexpr Victim kVictims[] = {Victim::kSource, Victim::kReceiver, Victim::kClient, Victim::kGlobalStore,
                                 Victim::kOtherReceiver};
  const uint64_t first = fault.operation->source_is_receiver ? 1 : 0;
  const uint64_t past = fault.operation->fans_out ? 5 : 4;
  fault.victim = kVictims[first + Below(random, past - first)];
  fault.kill = Below(random, 2) == 0;
  fault.moment = kLatestMoment * static_cast<double>(Below(random, 1000)) / 1000;
  fault.stop_for = absl::Milliseconds(Below(random, kLongestStopMs));
  fault.restart_at_once = Below(random, 4) != 0;
  return fault;
}

Fault DrawFault(std::mt19937_64& random, int members) {
  Fault fault = DrawFault(random);
  fault.member = static_cast<int>(Below(random, static_cast<uint64_t>(members)));
  const uint64_t victim = Below(random, 4);
  if (victim < 2) fault.victim = victim == 0 ? Victim::kGlobalStore : Victim::kEtcd;
  if (fault.victim == Victim::kGlobalStore || fault.victim == Victim::kEtcd) {
    fault.stop_for = absl::Milliseconds(Below(random, kLongestStopOfStoreMs));
  }
  return fault;
}

}  // namespace tensorcast::chaos
