// The possible faults of a round of chaos, and drawing one from a seed. Functions only.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tensorcast::chaos {

enum class Victim { kSource, kReceiver, kClient, kGlobalStore, kOtherReceiver, kEtcd };

// The operation of a round's client. Gets are of the base artifact, from node 0. A publication of the next
// version is at node 0 too, and all nodes get both versions. Nodes 0 and 1 are on one host, every other node
// is on its own host.
struct Operation {
  const char* name;
  const char* verb;  // for chaos_victim
  int node;          // the node of the client: the receiver
  const char* location = "cpu";
  const char* lane = "";
  bool writes = false;              // makes a new artifact and key
  bool drop_base_replica = false;   // node 0 has to read its packed file again
  bool source_is_receiver = false;  // no other node takes part
  bool fans_out = false;            // its client gets at all nodes except the source, at once
  bool by_difference = false;       // makes the next version of the base artifact
};

inline constexpr int kOtherReceiver = 3;  // the node of Victim::kOtherReceiver, in a fan-out
inline constexpr int kMinDaemons = kOtherReceiver + 1;

struct Fault {
  const Operation* operation;
  Victim victim;
  bool kill;                // SIGKILL; false: SIGSTOP, then SIGCONT
  double moment;            // share of the undisturbed time of the operation; may be past its end
  absl::Duration stop_for;  // of a SIGSTOP
  bool restart_at_once;     // for a killed server; false: only when the client has ended
  int member;               // for Victim::kEtcd
};

const std::vector<Operation>& Operations();
std::string_view Name(Victim victim);
Fault DrawFault(std::mt19937_64& random);
// For several global stores with an etcd of `members`: every other fault is of the leader or of etcd.
Fault DrawFault(std::mt19937_64& random, int members);

}  // namespace tensorcast::chaos
