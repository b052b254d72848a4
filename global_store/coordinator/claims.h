// Locks of the durable changes in progress. Each record that a change reads or writes (artifact, key, node,
// task) has a name. A name has one writer or any number of readers. Changes without a common name can be
// committed at the same time. Thread-compatible.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

struct ClaimedNames {
  std::set<std::string> writes;
  std::set<std::string> reads;
};

// The names that a change with these facts reads and writes. `artifacts`: see Change::artifacts.
ClaimedNames NamesOf(const DurableFacts& facts, const std::vector<std::string>& artifacts);

class Claims {
 public:
  bool AreFree(const ClaimedNames& names) const;
  // REQUIRES: AreFree(names).
  void Take(const ClaimedNames& names);
  // REQUIRES: Take(names) was called before.
  void Release(const ClaimedNames& names);
  bool empty() const { return holders_.empty(); }

 private:
  static constexpr int kWriter = -1;
  absl::flat_hash_map<std::string, int> holders_;  // kWriter, or the number of readers
};

}  // namespace tensorcast::global_store
