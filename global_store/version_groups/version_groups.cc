#include "global_store/version_groups/version_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// How long the processes of a group that is over are told so, as a multiple of the time after which one is
// lost.
constexpr int kRememberedFor = 10;
// More names would not help a person.
constexpr size_t kNamesShown = 8;

std::string_view TextOf(OnLostMember on_lost) {
  switch (on_lost) {
    case OnLostMember::kWait:
      return "wait";
    case OnLostMember::kFail:
      return "fail";
    case OnLostMember::kDrop:
      return "drop";
  }
  return "unknown";
}

uint64_t RevisionOf(const AnnouncementRecord* announced) {
  return announced == nullptr ? 0 : announced->revision;
}

}  // namespace

// The life of a group: processes take seats (Seat) until the group is complete. A complete group keeps one
// candidate version until all members have prepared it, and announces that version (ToAnnounce). Then the
// next candidate is chosen. Where a member is lost, the policy decides: kWait waits for it, kDrop gives up
// its seat, and kFail ends the group for all of its members (End). A group is forgotten when it has no member
// and no process has to be told of its end.
size_t VersionGroups::Group::Seats() const {
  return std::ranges::count_if(members, [](const auto& one) { return !one.second.instance.empty(); });
}

// All members are there, so that a version that they have prepared may be announced.
bool VersionGroups::Group::IsComplete(SteadyTime now) const {
  const bool all_heard = std::ranges::none_of(
      members, [&](const auto& one) { return one.second.instance.empty() || IsSilent(one.second, now); });
  if (!all_heard || members.empty()) return false;
  // Members that were dropped are not waited for, but those that have never come are.
  return Seats() >= size || (on_lost == OnLostMember::kDrop && was_complete);
}

absl::Status VersionGroups::CheckFits(const Group& group, const GroupCall& call) {
  if (group.size == call.size && group.on_lost == call.on_lost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "agree on a version of ", call.key, ": member ", call.member, " says that group ", call.group, " has ",
      call.size, " members and the policy ", TextOf(call.on_lost), ", and the other members say ", group.size,
      " members and the policy ", TextOf(group.on_lost), "; give all members the same size and policy"));
}

void VersionGroups::End(Group& group, const std::string& cause, SteadyTime now) {
  const absl::Status why =
      absl::AbortedError(absl::StrCat("agree on a version of ", group.key, ": group ", group.name,
                                      " ended: ", cause, "; start all members of the group again"));
  for (const auto& [name, member] : group.members) {
    if (member.instance.empty()) continue;
    group.ended[member.instance] = {.why = why, .until = now + kRememberedFor * group.lost_after};
  }
  group.members.clear();
  group.candidate = {};
  group.was_complete = false;
  group.incomplete_since = now;
}

bool VersionGroups::ExpireOne(Group& group, SteadyTime now) {
  std::erase_if(group.ended, [now](const auto& one) { return one.second.until < now; });
  const auto silent = [&](const auto& one) { return group.IsSilent(one.second, now); };
  if (group.on_lost == OnLostMember::kDrop) {
    std::erase_if(group.members, silent);
  } else if (std::ranges::all_of(group.members, silent)) {
    group.members.clear();  // none is left that would wait for another
  } else if (group.on_lost == OnLostMember::kFail) {
    const auto lost = std::ranges::find_if(group.members, silent);
    // A member that knows an announcement was in a group that was complete once, perhaps under another store.
    const bool rejoined =
        std::ranges::any_of(group.members, [](const auto& one) { return one.second.known > 0; });
    if (lost != group.members.end()) {
      End(group,
          absl::StrCat("member ", lost->first, " sent no call for ", absl::FormatDuration(group.lost_after)),
          now);
    } else if (rejoined && group.Seats() < group.size && now - group.incomplete_since > group.lost_after) {
      // The store took over, and a member did not come back to it.
      End(group, absl::StrCat("only ", group.Seats(), " of its ", group.size, " members joined again"), now);
    }
  }
  return !group.members.empty() || !group.ended.empty();
}

VersionGroups::Member* VersionGroups::Seat(Group& group, const GroupCall& call, SteadyTime now) {
  const auto found = group.members.find(call.member);
  if (found != group.members.end()) {
    Member& member = found->second;
    if (member.instance == call.instance) return &member;
    if (!member.instance.empty()) {
      // The process before it has ended, and cannot have what this one has yet to prepare.
      group.ended[member.instance] = {
          .why = absl::AbortedError(
              absl::StrCat("agree on a version of ", call.key, ": another process took the place of member ",
                           call.member, " in group ", call.group, "; give each process its own member name")),
          .until = now + kRememberedFor * group.lost_after};
      group.members.erase(found);
      if (group.on_lost == OnLostMember::kFail) {
        End(group, absl::StrCat("the process of member ", call.member, " was replaced"), now);
      }
    }
  } else if (group.Seats() >= group.size) {
    // Only a lost member makes room.
    const auto longest =
        std::ranges::min_element(group.members, {}, [](const auto& one) { return one.second.heard; });
    if (!group.IsSilent(longest->second, now)) return nullptr;
    group.members.erase(longest);
  }
  Member& member = group.members[call.member];
  member = {.instance = call.instance};
  if (group.Seats() >= group.size) group.was_complete = true;
  return &member;
}

absl::Status VersionGroups::Note(const GroupCall& call, const Announcements& announcements, SteadyTime now) {
  const std::string name = VersionGroupName(call.group, call.key);
  const auto [at, is_new] = groups_.try_emplace(name);
  Group& group = at->second;
  if (!is_new) ExpireOne(group, now);
  // The first member of a group, or of its next life, describes the group. The others must agree with it.
  if (is_new || group.members.empty()) {
    group.key = call.key;
    group.name = call.group;
    group.size = call.size;
    group.on_lost = call.on_lost;
    group.lost_after = call.lost_after;
    group.incomplete_since = now;
  }
  if (const auto ended = group.ended.find(call.instance); ended != group.ended.end()) {
    return ended->second.why;
  }
  TC_RETURN_IF_ERROR(CheckFits(group, call));
  if (is_new && call.on_lost == OnLostMember::kDrop) {
    // Members that were there when the last version was announced may be alive: they are waited for until
    // they count as lost, so that a store which takes over does not announce without them.
    if (const AnnouncementRecord* announced = announcements.Find(name); announced != nullptr) {
      for (const std::string& member : announced->members) group.members[member] = {.heard = now};
      group.was_complete = true;
    }
  }
  if (call.leaves) {
    const auto found = group.members.find(call.member);
    if (found == group.members.end() || found->second.instance != call.instance) return absl::OkStatus();
    group.members.erase(found);
    if (group.on_lost == OnLostMember::kFail) {
      End(group, absl::StrCat("member ", call.member, " left the group"), now);
    }
    group.incomplete_since = now;
    return absl::OkStatus();
  }
  Member* const member = Seat(group, call, now);
  // No seat is free. That is not an error: the caller's next report tries again, as one that waits.
  if (member == nullptr) return absl::OkStatus();
  member->prepared = call.prepared;
  member->preparing = call.preparing;
  member->known = std::max(member->known, call.known);
  member->heard = now;
  return absl::OkStatus();
}

void VersionGroups::ChooseCandidate(Group& group, const Catalog& catalog, const AnnouncementRecord* announced,
                                    SteadyTime now) {
  // A candidate must be newer than the last announcement in the store, and not older than one that a member
  // knows.
  // Metadata that was restored may have lost what was announced; the members have not.
  uint64_t known = 0;
  for (const auto& [name, member] : group.members) known = std::max(known, member.known);
  const auto may_announce = [&](uint64_t revision) {
    return revision > RevisionOf(announced) && revision >= known;
  };
  GroupVersion& candidate = group.candidate;
  const absl::StatusOr<KeyRecord> key = catalog.ResolveKey(group.key);
  // Kept until it is announced, whatever is published meanwhile: a group that always began with the newest
  // version would announce none where versions come faster than all members prepare one. While a member is
  // missing nothing can be announced, and the group may as well prepare the newest.
  if (candidate.revision != 0 && may_announce(candidate.revision) && group.IsComplete(now) &&
      catalog.Find(candidate.artifact_id) != nullptr) {
    return;
  }
  candidate = {};
  if (key.ok() && may_announce(key->revision)) candidate = {key->revision, key->artifact_id};
}

std::optional<AnnouncementRecord> VersionGroups::ToAnnounce(std::string_view name, const Catalog& catalog,
                                                            const Announcements& announcements,
                                                            SteadyTime now) {
  const auto found = groups_.find(name);
  if (found == groups_.end()) return std::nullopt;
  Group& group = found->second;
  ChooseCandidate(group, catalog, announcements.Find(name), now);
  if (group.candidate.revision == 0 || !group.IsComplete(now)) return std::nullopt;
  AnnouncementRecord record{.key = group.key,
                            .group = group.name,
                            .revision = group.candidate.revision,
                            .artifact_id = group.candidate.artifact_id};
  for (const auto& [member_name, member] : group.members) {
    if (member.prepared != group.candidate) return std::nullopt;
    record.members.push_back(member_name);
  }
  return record;
}

absl::StatusOr<std::optional<GroupAnswer>> VersionGroups::AnswerTo(const GroupCall& call,
                                                                   const Catalog& catalog,
                                                                   const Announcements& announcements,
                                                                   SteadyTime now) {
  const std::string name = VersionGroupName(call.group, call.key);
  const auto found = groups_.find(name);
  if (found == groups_.end()) return std::nullopt;
  Group& group = found->second;
  if (const auto ended = group.ended.find(call.instance); ended != group.ended.end()) {
    return ended->second.why;
  }
  const auto member = group.members.find(call.member);
  // A process without a seat is told nothing yet.
  if (member == group.members.end() || member->second.instance != call.instance) return std::nullopt;
  const AnnouncementRecord* announced = announcements.Find(name);
  ChooseCandidate(group, catalog, announced, now);
  GroupAnswer answer;
  if (RevisionOf(announced) > call.known) answer.announced = {announced->revision, announced->artifact_id};
  const GroupVersion& candidate = group.candidate;
  if (candidate.revision != 0 && candidate != call.prepared && candidate.revision != call.preparing) {
    answer.prepare = candidate;
  }
  if (!answer.announced.has_value() && !answer.prepare.has_value()) return std::nullopt;
  return answer;
}

std::vector<std::string> VersionGroups::WaitsFor(std::string_view name, SteadyTime now) const {
  std::vector<std::string> texts;
  const auto found = groups_.find(name);
  if (found == groups_.end()) return texts;
  const Group& group = found->second;
  size_t more = 0;
  const auto add = [&](std::string text) {
    if (texts.size() < kNamesShown) {
      texts.push_back(std::move(text));
    } else {
      ++more;
    }
  };
  for (const auto& [member_name, member] : group.members) {
    if (member.instance.empty() || group.IsSilent(member, now)) {
      add(absl::StrCat("member ", member_name, ", which is silent"));
    } else if (group.candidate.revision != 0 && member.prepared != group.candidate) {
      add(absl::StrCat("member ", member_name, ", which prepares revision ", group.candidate.revision));
    }
  }
  if (more > 0) texts.push_back(absl::StrCat(more, " other members"));
  if (group.Seats() < group.size && !(group.on_lost == OnLostMember::kDrop && group.was_complete)) {
    const size_t missing = group.size - group.Seats();
    texts.push_back(absl::StrCat(
        missing, missing == 1 ? " member that has not joined yet" : " members that have not joined yet"));
  }
  if (texts.empty() && group.candidate.revision == 0) texts.push_back("a new version of the key");
  return texts;
}

void VersionGroups::Expire(SteadyTime now) {
  for (auto at = groups_.begin(); at != groups_.end();) {
    at = ExpireOne(at->second, now) ? std::next(at) : groups_.erase(at);
  }
}

std::vector<std::string> VersionGroups::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, group] : groups_) names.push_back(name);
  return names;
}

}  // namespace tensorcast::global_store
