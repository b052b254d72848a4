// Version groups: processes that switch to a new version of a key together, such as the ranks of an engine. A
// version may be announced after all members have prepared that version. The caller makes the announcement
// durable (Announcements). README.md has the rules.
//
// Soft state: after a restart of the store, members report again in their next calls. Callers pass the time.
// Thread-compatible: one caller at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/version_groups/announcements.h"

namespace tensorcast::global_store {

struct GroupVersion {
  uint64_t revision = 0;  // of the key; 0: none
  std::string artifact_id;
  friend bool operator==(const GroupVersion&, const GroupVersion&) = default;
};

// What happens to a group when one of its members is lost.
enum class OnLostMember : uint8_t { kWait, kFail, kDrop };

// A member's report in each call.
struct GroupCall {
  std::string key;
  std::string group;
  uint32_t size = 0;  // number of members
  OnLostMember on_lost = OnLostMember::kWait;
  absl::Duration lost_after;  // a member that is silent for longer is lost
  std::string member;         // the member's name in the group
  std::string instance;       // names the process; new at each start of the member
  GroupVersion prepared;      // the last version that the member prepared
  uint64_t preparing = 0;     // the revision that the member prepares now; 0: none
  uint64_t known = 0;         // the last announced revision that the member knows
  bool leaves = false;
};

struct GroupAnswer {
  std::optional<GroupVersion> announced;  // set if newer than GroupCall::known
  std::optional<GroupVersion> prepare;    // set if the member must prepare this version
  std::vector<std::string> waits_for;     // for people: what an announcement waits for
};

class VersionGroups {
 public:
  // Takes a member's report. INVALID_ARGUMENT if its group size or policy differs from that of the other
  // members. ABORTED if the group ended (kFail), or if a newer process uses the member's name.
  absl::Status Note(const GroupCall& call, const Announcements& announcements, SteadyTime now);
  // The version that all members have prepared and that is not announced yet; nullopt: none. `name` as from
  // VersionGroupName.
  std::optional<AnnouncementRecord> ToAnnounce(std::string_view name, const Catalog& catalog,
                                               const Announcements& announcements, SteadyTime now);
  // The answer to the member; nullopt: there is no news yet. ABORTED as for Note.
  absl::StatusOr<std::optional<GroupAnswer>> AnswerTo(const GroupCall& call, const Catalog& catalog,
                                                      const Announcements& announcements, SteadyTime now);
  // What the group waits for, for people.
  std::vector<std::string> WaitsFor(std::string_view name, SteadyTime now) const;
  // Drops members that were silent for too long, and forgets groups without members.
  void Expire(SteadyTime now);
  // The names of all groups, as from VersionGroupName.
  std::vector<std::string> Names() const;

 private:
  struct Member {
    std::string instance;  // empty: known only from an announcement of an earlier leader
    GroupVersion prepared;
    uint64_t preparing = 0;
    uint64_t known = 0;
    SteadyTime heard;
  };
  struct Ended {
    absl::Status why;
    SteadyTime until;  // forgotten after this time
  };
  struct Group {
    std::string key;
    std::string name;
    uint32_t size = 0;
    OnLostMember on_lost = OnLostMember::kWait;
    absl::Duration lost_after;
    std::map<std::string, Member> members;  // by name
    std::map<std::string, Ended> ended;     // instances that are no longer in the group
    GroupVersion candidate;                 // the version that the members prepare
    bool was_complete = false;
    SteadyTime incomplete_since;

    // The number of members that have called since this store began to lead.
    size_t Seats() const;
    bool IsSilent(const Member& member, SteadyTime now) const { return now - member.heard > lost_after; }
    bool IsComplete(SteadyTime now) const;
  };
  using Groups = std::map<std::string, Group, std::less<>>;  // by VersionGroupName

  static absl::Status CheckFits(const Group& group, const GroupCall& call);
  // False: the group can be forgotten.
  static bool ExpireOne(Group& group, SteadyTime now);
  // Ends the group for its present members.
  static void End(Group& group, const std::string& cause, SteadyTime now);
  // Adds a process as a member. It replaces an earlier process with the same name. Null: the group is full.
  static Member* Seat(Group& group, const GroupCall& call, SteadyTime now);
  static void ChooseCandidate(Group& group, const Catalog& catalog, const AnnouncementRecord* announced,
                              SteadyTime now);

  Groups groups_;
};

}  // namespace tensorcast::global_store
