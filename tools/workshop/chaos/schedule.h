// What may go wrong in a round of chaos, and drawing it from a seed. Functions only.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tensorcast::chaos {

enum class Victim { kSource, kReceiver, kClient, kGlobalStore, kOtherReceiver, kEtcd };

// What the client of a round does. Gets are of the base artifact; its source is node 0. A publication of the
// next version is at node 0, too, and all nodes get both versions.
// Nodes 0 and 1 are of one host, each other node is of its own.
struct Operation {
  const char* name;
  const char* verb;  // of chaos_victim
  int node;          // the node of the client: the receiver
  const char* location = "cpu";
  const char* lane = "";
  bool writes = false;              // makes an artifact and a key of its own
  bool drop_base_replica = false;   // node 0 has to read its packed file again
  bool source_is_receiver = false;  // there is no other node in it
  bool fans_out = false;            // its client gets at every node but the source's at once
  bool by_difference = false;       // what it makes is the next version of the base artifact
};

inline constexpr int kOtherReceiver = 3;  // the node of Victim::kOtherReceiver, in a fan-out
inline constexpr int kMinDaemons = kOtherReceiver + 1;

struct Fault {
  const Operation* operation;
  Victim victim;
  bool kill;                // SIGKILL; else SIGSTOP, then SIGCONT
  double moment;            // as a part of how long the operation takes undisturbed; may be past its end
  absl::Duration stop_for;  // of a SIGSTOP
  bool restart_at_once;     // a killed server; else only when the client has ended
  int member;               // of Victim::kEtcd
};

const std::vector<Operation>& Operations();
std::string_view Name(Victim victim);
Fault DrawFault(std::mt19937_64& random);
// Where several global stores share an etcd of `members`: every other fault is the leader's or etcd's.
Fault DrawFault(std::mt19937_64& random, int members);

}  // namespace tensorcast::chaos
