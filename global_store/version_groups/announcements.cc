#include "global_store/version_groups/announcements.h"

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {

std::string VersionGroupName(std::string_view group, std::string_view key) {
  return absl::StrCat(group, "/", key);
}

DurableFacts Announcements::Prepare(const AnnouncementRecord& record) const {
  const AnnouncementRecord* before = Find(VersionGroupName(record.group, record.key));
  if (before != nullptr && before->revision >= record.revision) return {};
  return {.announcements = {record}};
}

void Announcements::Apply(const AnnouncementRecord& record) {
  announced_[VersionGroupName(record.group, record.key)] = record;
}

void Announcements::Purge(absl::Time before) {
  absl::erase_if(announced_, [before](const auto& one) { return one.second.updated < before; });
}

const AnnouncementRecord* Announcements::Find(std::string_view name) const {
  const auto found = announced_.find(name);
  return found == announced_.end() ? nullptr : &found->second;
}

}  // namespace tensorcast::global_store
