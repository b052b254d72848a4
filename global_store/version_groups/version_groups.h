// Version groups: processes that switch to a new version of a key together, such as the ranks of an engine.
// The members report which version they have prepared. Once all members have prepared the same version, it
// may be announced; the caller makes the announcement durable (Announcements). README.md has the rules.
//
// Soft state: after a restart of the store, members report their prepared version again in their next calls.
// No clock, no threads. Reads the catalog and the announcements that callers pass. Thread-compatible: one
// caller at a time.
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
  GroupVersion prepared;      // the last version that it prepared
  uint64_t preparing = 0;     // the revision that it prepares now; 0: none
  uint64_t known = 0;         // the last revision that it knows to be announced
  bool leaves = false;
};

struct GroupAnswer {
  std::optional<GroupVersion> announced;  // set if it is newer than the announcement that the member knows
  std::optional<GroupVersion> prepare;    // what the group prepares; set if the member has another version
  std::vector<std::string> waits_for;     // for people: what an announcement waits for
};

class VersionGroups {
 public:
  // Takes a member's report. INVALID_ARGUMENT if it describes the group differently from the others; ABORTED
  // if the group ended (kFail), or if another process took the member's place.
  absl::Status Note(const GroupCall& call, const Announcements& announcements, SteadyTime now);
  // The version to announce, which all members have prepared; nullopt: none. `name` as from VersionGroupName.
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
    std::string instance;  // empty: only known from an announcement before this store took over
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

    // The number of members that have called since this store took over.
    size_t Seats() const;
    bool IsSilent(const Member& member, SteadyTime now) const { return now - member.heard > lost_after; }
    bool IsComplete(SteadyTime now) const;
  };
  using Groups = std::map<std::string, Group, std::less<>>;  // by VersionGroupName

  static absl::Status CheckFits(const Group& group, const GroupCall& call);
  // False: all its members left or were lost.
  static bool ExpireOne(Group& group, SteadyTime now);
  // Ends the group for its present members.
  static void End(Group& group, const std::string& cause, SteadyTime now);
  // Adds a process as a member. It replaces an earlier process with the same name. Null: the group has no
  // room yet.
  static Member* Seat(Group& group, const GroupCall& call, SteadyTime now);
  static void ChooseCandidate(Group& group, const Catalog& catalog, const AnnouncementRecord* announced,
                              SteadyTime now);

  Groups groups_;
};

}  // namespace tensorcast::global_store
