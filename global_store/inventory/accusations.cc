#include "global_store/inventory/accusations.h"

#include <algorithm>
#include <utility>

#include "global_store/inventory/evictions.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kEnoughAccusers = 2;
constexpr size_t kMaxRefutations = 2;
// More receivers than these need not be remembered: so many honest ones are enough against accusers that act
// together.
constexpr size_t kMaxReaders = 4;
// A holder reads some GB/s: until then receivers that have no other source wait for its answer.
constexpr absl::Duration kDigestTime = absl::Minutes(1);

}  // namespace

bool Accusations::HasWeight(const std::string& accuser) const {
  const auto refuted = refutations_.find(accuser);
  return refuted == refutations_.end() || refuted->second.size() < kMaxRefutations;
}

void Accusations::Note(const ReplicaName& name, const Node& accuser, SteadyTime now) {
  inventory_->Change(name, [&](HeldReplica& replica) {
    // By name: a node may come back with another id, and its name is its certificate's.
    if (!replica.accusers.insert(accuser.facts.name).second) return;  // it was asked for this one already
    accused_.push_back(name);
    replica.digested_by = now + kDigestTime;
    // An accuser without weight is heard by the holder alone: the replica stays a source while the holder
    // digests it.
    replica.corrupt |= HasWeight(accuser.facts.name);
  });
}

void Accusations::NoteRead(const ReplicaName& name, const Node& reader) {
  const HeldReplica* replica = inventory_->Find(name.node_id, name.replica_id);
  if (replica == nullptr || replica->readers.size() >= kMaxReaders) return;
  if (replica->readers.contains(reader.facts.name)) return;
  inventory_->Change(name, [&](HeldReplica& read) { read.readers.insert(reader.facts.name); });
}

std::vector<CopyToProve> Accusations::Take() {
  std::vector<CopyToProve> accused;
  for (const ReplicaName& name : std::exchange(accused_, {})) {
    const HeldReplica* replica = inventory_->Find(name.node_id, name.replica_id);
    if (replica != nullptr) accused.push_back(ToProve(*nodes_.Find(name.node_id), *replica));
  }
  return accused;
}

void Accusations::NoteIntact(const ReplicaName& name) {
  inventory_->Change(name, [&](HeldReplica& replica) {
    replica.digested_by = SteadyTime::InfinitePast();
    // The accusation is weighed before the holder's answer is noted below: the answer takes weight from later
    // accusations only.
    const auto with_weight = static_cast<size_t>(std::ranges::count_if(
        replica.accusers, [this](const std::string& accuser) { return HasWeight(accuser); }));
    for (const std::string& accuser : replica.accusers) {
      std::set<std::string>& by = refutations_[accuser];
      if (by.size() < kMaxRefutations) by.insert(nodes_.Find(name.node_id)->facts.name);
    }
    // Enough receivers with weight outvote the holder and its readers, and the replica stays out.
    if (with_weight < std::max(kEnoughAccusers, replica.readers.size() + 1)) replica.corrupt = false;
  });
}

}  // namespace tensorcast::global_store
