// What version groups have announced: durable facts, so that a store which takes over never announces an
// older version than the store before it. Thread-compatible: one caller at a time.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

// Of a group and its key. The name of a group has no '/', so two pairs never have one name.
std::string VersionGroupName(std::string_view group, std::string_view key);

class Announcements {
 public:
  // Nothing where this revision, or a newer one, was announced: two callers may find that a version is agreed
  // on.
  DurableFacts Prepare(const AnnouncementRecord& record) const;
  void Apply(const AnnouncementRecord& record);
  // Forgets those that are older, as the metadata store's Purge does.
  void Purge(absl::Time before);
  // Null: the group has announced nothing. `name`: as VersionGroupName has it.
  const AnnouncementRecord* Find(std::string_view name) const;

 private:
  absl::btree_map<std::string, AnnouncementRecord> announced_;  // by VersionGroupName
};

}  // namespace tensorcast::global_store
