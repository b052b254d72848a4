// The names that running durable changes read and write, so that changes without a common name can be
// committed at the same time: a name has one writer or any number of readers. Not thread-safe.
#pragma once

#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

struct ClaimedNames {
  std::set<std::string> writes;
  std::set<std::string> reads;
};

// The names that these facts were planned from and replace. `artifact`: another name that the change is
// about; may be empty.
ClaimedNames NamesOf(const DurableFacts& facts, const std::string& artifact);

class Claims {
 public:
  bool AreFree(const ClaimedNames& names) const;
  // REQUIRES: they are free.
  void Take(const ClaimedNames& names);
  // REQUIRES: they were taken.
  void Release(const ClaimedNames& names);
  bool empty() const { return holders_.empty(); }

 private:
  static constexpr int kWriter = -1;
  absl::flat_hash_map<std::string, int> holders_;  // kWriter, or the number of readers
};

}  // namespace tensorcast::global_store
