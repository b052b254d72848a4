// The announcements of version groups are durable facts. So a store that takes over never announces an older
// version than the previous store did. Thread-compatible: one caller at a time.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

// A unique name for the pair of group and key. REQUIRES: the group's own name has no '/'.
std::string VersionGroupName(std::string_view group, std::string_view key);

class Announcements {
 public:
  // The facts that announce a version. No facts if this revision or a newer revision is already announced.
  DurableFacts Prepare(const AnnouncementRecord& record) const;
  void Apply(const AnnouncementRecord& record);
  // Forgets announcements older than the time `before`, as the metadata store's Purge does.
  void Purge(absl::Time before);
  // Null: the group has announced nothing. `name` as from VersionGroupName.
  const AnnouncementRecord* Find(std::string_view name) const;

 private:
  absl::btree_map<std::string, AnnouncementRecord> announced_;  // by VersionGroupName
};

}  // namespace tensorcast::global_store
