// The announcements of version groups: durable facts, so that a store which takes over never announces an
// older version than the store before it. Thread-compatible: one caller at a time.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

// The name of a group with its key. A group has no '/' in its own name, so two pairs never have one name.
std::string VersionGroupName(std::string_view group, std::string_view key);

class Announcements {
 public:
  // No facts if this revision, or a newer one, was announced: two callers may find that a version is agreed
  // on.
  DurableFacts Prepare(const AnnouncementRecord& record) const;
  void Apply(const AnnouncementRecord& record);
  // Forgets announcements that are older, as the metadata store's Purge does.
  void Purge(absl::Time before);
  // Null: the group has announced nothing. `name` as from VersionGroupName.
  const AnnouncementRecord* Find(std::string_view name) const;

 private:
  absl::btree_map<std::string, AnnouncementRecord> announced_;  // by VersionGroupName
};

}  // namespace tensorcast::global_store
