#include "global_store/version_groups/version_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kName[] = "g/k";

class VersionGroupsTest : public ::testing::Test {
 protected:
  // Binds the key to an artifact of its own.
  void Publish() {
    ++revision_;
    const std::string artifact_id = absl::StrCat("v", revision_);
    catalog_->Apply(ArtifactRecord{.artifact_id = artifact_id});
    catalog_->Apply(KeyRecord{.name = "k", .artifact_id = artifact_id, .revision = revision_});
  }
  GroupCall Call(const std::string& member, uint64_t prepared = 0, uint64_t known = 0) const {
    GroupCall call{.key = "k",
                   .group = "g",
                   .size = size_,
                   .on_lost = on_lost_,
                   .lost_after = absl::Seconds(10),
                   .member = member,
                   .instance = absl::StrCat("process of ", member),
                   .known = known};
    if (prepared != 0) call.prepared = {prepared, absl::StrCat("v", prepared)};
    return call;
  }
  // As the store takes a call: heard, announced where all agree, answered.
  absl::StatusOr<std::optional<GroupAnswer>> Poll(const GroupCall& call) {
    if (absl::Status noted = groups_->Note(call, announcements_, now_); !noted.ok()) return noted;
    const auto agreed = groups_->ToAnnounce(kName, *catalog_, announcements_, now_);
    if (agreed.has_value()) {
      for (const AnnouncementRecord& record : announcements_.Prepare(*agreed).announcements) {
        announcements_.Apply(record);
      }
    }
    return groups_->AnswerTo(call, *catalog_, announcements_, now_);
  }
  void Hear(const GroupCall& call) {
    const auto answer = Poll(call);
    EXPECT_TRUE(answer.ok()) << answer.status();
  }
  // The revision that the member is to prepare, or hears announced; 0: it is to wait.
  uint64_t ToPrepare(const GroupCall& call) {
    const auto answer = Poll(call);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && answer->has_value() && (*answer)->prepare.has_value() ? (*answer)->prepare->revision
                                                                                : 0;
  }
  uint64_t Announced(const GroupCall& call) {
    const auto answer = Poll(call);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && answer->has_value() && (*answer)->announced.has_value()
               ? (*answer)->announced->revision
               : 0;
  }
  // The store fails over: what is soft is gone.
  void FailOver() { groups_ = std::make_unique<VersionGroups>(); }

  uint32_t size_ = 2;
  OnLostMember on_lost_ = OnLostMember::kWait;
  uint64_t revision_ = 0;
  SteadyTime now_ = SteadyTime() + absl::Seconds(1000);
  std::unique_ptr<Catalog> catalog_ = std::make_unique<Catalog>(Retention());
  Announcements announcements_;
  std::unique_ptr<VersionGroups> groups_ = std::make_unique<VersionGroups>();
};

TEST_F(VersionGroupsTest, VersionThatAllHavePrepared_IsAnnounced) {
  Publish();
  EXPECT_EQ(ToPrepare(Call("a")), 1u);
  EXPECT_EQ(Announced(Call("a", 1)), 0u) << "b has yet to come";
  EXPECT_EQ(ToPrepare(Call("b")), 1u);
  EXPECT_EQ(Announced(Call("b", 1)), 1u);
  EXPECT_EQ(Announced(Call("a", 1)), 1u);
  EXPECT_EQ(Announced(Call("a", 1, 1)), 0u) << "it knows";
}

TEST_F(VersionGroupsTest, VersionsThatComeFasterThanAllPrepare_DoNotStarveTheGroup) {
  Publish();
  Hear(Call("a"));
  EXPECT_EQ(ToPrepare(Call("b")), 1u);
  Publish();
  EXPECT_EQ(ToPrepare(Call("a", 1)), 0u) << "b prepares the first one";
  EXPECT_EQ(Announced(Call("b", 1)), 1u);
  Publish();
  EXPECT_EQ(ToPrepare(Call("a", 1, 1)), 2u) << "as b was told with the announcement";
  Publish();
  EXPECT_EQ(ToPrepare(Call("b", 1, 1)), 2u);
  Hear(Call("a", 2, 1));
  EXPECT_EQ(Announced(Call("b", 2, 1)), 2u);
  EXPECT_EQ(ToPrepare(Call("b", 2, 2)), 4u) << "the newest by then, not the third one";
}

TEST_F(VersionGroupsTest, MemberThatComesLate_PreparesNewestVersion) {
  Publish();
  EXPECT_EQ(ToPrepare(Call("a")), 1u);
  Publish();
  EXPECT_EQ(ToPrepare(Call("a", 1)), 2u) << "nothing can be announced without b";
  EXPECT_EQ(ToPrepare(Call("b")), 2u);
}

TEST_F(VersionGroupsTest, MemberThatIsTold_IsNotToldAgainWhilePreparing) {
  Publish();
  GroupCall call = Call("a");
  call.preparing = 1;
  EXPECT_EQ(ToPrepare(call), 0u);
  call.preparing = 0;
  EXPECT_EQ(ToPrepare(call), 1u);
}

TEST_F(VersionGroupsTest, FailoverBeforeAnnouncement_AnnouncesOnce) {
  Publish();
  Hear(Call("a", 1));
  FailOver();
  EXPECT_EQ(Announced(Call("b", 1)), 0u) << "a has yet to come to the new store";
  EXPECT_EQ(Announced(Call("a", 1)), 1u);
}

TEST_F(VersionGroupsTest, FailoverAfterAnnouncement_TellsIt) {
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  FailOver();
  Publish();
  EXPECT_EQ(Announced(Call("a", 1)), 1u) << "a did not hear the old store";
  EXPECT_EQ(ToPrepare(Call("b", 1, 1)), 2u);
}

TEST_F(VersionGroupsTest, MetadataThatLostAnAnnouncement_AnnouncesNothingOlder) {
  Publish();
  Publish();
  Hear(Call("a", 2, 2));
  EXPECT_EQ(Announced(Call("b", 2)), 2u) << "b never heard of it";
  FailOver();
  announcements_ = Announcements();
  revision_ = 0;
  Publish();
  EXPECT_EQ(ToPrepare(Call("a", 2, 2)), 0u);
  Hear(Call("a", 1, 2));
  EXPECT_EQ(Announced(Call("b", 1, 2)), 0u);
  EXPECT_EQ(announcements_.Find(kName), nullptr);
}

TEST_F(VersionGroupsTest, LostMember_IsWaitedForByDefault) {
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  Publish();
  for (int i = 0; i < 2; ++i) {
    now_ += absl::Seconds(6);
    Hear(Call("a", 2, 1));
  }
  EXPECT_THAT(groups_->WaitsFor(kName, now_), Contains(HasSubstr("member b, which is silent")));
  groups_->Expire(now_);
  EXPECT_EQ(Announced(Call("a", 2, 1)), 0u);
  EXPECT_EQ(Announced(Call("c")), 1u)
      << "another process takes the place of b, and begins where the group is";
  EXPECT_EQ(ToPrepare(Call("c", 1, 1)), 2u);
  EXPECT_EQ(Announced(Call("c", 2, 1)), 2u);
}

TEST_F(VersionGroupsTest, ProcessBeyondTheSize_WaitsForAPlace) {
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  EXPECT_EQ(Announced(Call("c")), 0u);
  EXPECT_EQ(ToPrepare(Call("c")), 0u);
}

TEST_F(VersionGroupsTest, LostMember_EndsGroupThatFails) {
  on_lost_ = OnLostMember::kFail;
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  now_ += absl::Seconds(6);
  Hear(Call("a", 1, 1));
  now_ += absl::Seconds(6);
  const auto answer = Poll(Call("a", 1, 1));
  EXPECT_TRUE(absl::IsAborted(answer.status())) << answer.status();
  EXPECT_THAT(answer.status().message(), HasSubstr("member b sent no call"));
  EXPECT_TRUE(absl::IsAborted(Poll(Call("b", 1, 1)).status())) << "it was only slow, and is told, too";
  GroupCall anew = Call("a");
  anew.instance = "another process";
  EXPECT_EQ(Announced(anew), 1u) << "processes that begin anew form the group again";
}

TEST_F(VersionGroupsTest, MemberThatDoesNotComeToNewStore_EndsGroupThatFails) {
  on_lost_ = OnLostMember::kFail;
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  FailOver();
  EXPECT_TRUE(Poll(Call("a", 1, 1)).ok());
  now_ += absl::Seconds(6);
  EXPECT_TRUE(Poll(Call("a", 1, 1)).ok());
  now_ += absl::Seconds(6);
  EXPECT_TRUE(absl::IsAborted(Poll(Call("a", 1, 1)).status()));
}

TEST_F(VersionGroupsTest, LostMember_IsDroppedWhereAsked) {
  on_lost_ = OnLostMember::kDrop;
  Publish();
  EXPECT_EQ(Announced(Call("a", 1)), 0u) << "a member that has never come is not dropped";
  Hear(Call("b", 1));
  Publish();
  now_ += absl::Seconds(6);
  Hear(Call("a", 2, 1));
  now_ += absl::Seconds(6);
  EXPECT_EQ(Announced(Call("a", 2, 1)), 2u);
}

TEST_F(VersionGroupsTest, FailoverOfDroppingGroup_WaitsForEarlierMembers) {
  on_lost_ = OnLostMember::kDrop;
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  Publish();
  FailOver();
  EXPECT_EQ(Announced(Call("a", 2, 1)), 0u) << "b may be alive";
  now_ += absl::Seconds(6);
  EXPECT_EQ(Announced(Call("a", 2, 1)), 0u);
  now_ += absl::Seconds(6);
  EXPECT_EQ(Announced(Call("a", 2, 1)), 2u);
}

TEST_F(VersionGroupsTest, ProcessThatWasReplaced_IsTold) {
  Publish();
  Hear(Call("a", 1));
  GroupCall anew = Call("a");
  anew.instance = "another process";
  EXPECT_EQ(ToPrepare(anew), 1u);
  EXPECT_TRUE(absl::IsAborted(Poll(Call("a", 1)).status()));
  Hear(Call("b", 1));
  EXPECT_EQ(announcements_.Find(kName), nullptr) << "the new process has not prepared it";
}

TEST_F(VersionGroupsTest, MemberThatLeaves_MakesRoom) {
  Publish();
  Hear(Call("a", 1));
  Hear(Call("b", 1));
  GroupCall leaving = Call("b");
  leaving.leaves = true;
  EXPECT_TRUE(groups_->Note(leaving, announcements_, now_).ok());
  EXPECT_EQ(Announced(Call("c")), 1u);
}

TEST_F(VersionGroupsTest, MembersThatDisagreeOnTheGroup_AreRefused) {
  Hear(Call("a"));
  GroupCall other = Call("b");
  other.size = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(Poll(other).status()));
}

TEST_F(VersionGroupsTest, VersionThatIsGone_IsNotPreparedOn) {
  Publish();
  Hear(Call("a"));
  Hear(Call("b"));
  Publish();
  catalog_->Apply(ArtifactRecord{.artifact_id = "v1", .deleted = true});
  EXPECT_EQ(ToPrepare(Call("a")), 2u);
  EXPECT_EQ(ToPrepare(Call("b")), 2u);
}

TEST(AnnouncementsTest, OlderRevision_IsNotAnnounced) {
  Announcements announcements;
  const AnnouncementRecord second{.key = "k", .group = "g", .revision = 2, .artifact_id = "v2"};
  announcements.Apply(second);
  EXPECT_TRUE(announcements.Prepare({.key = "k", .group = "g", .revision = 1}).empty());
  EXPECT_TRUE(announcements.Prepare(second).empty());
  EXPECT_FALSE(announcements.Prepare({.key = "k", .group = "h", .revision = 1}).empty());
}

// Members of random speed that die, are replaced and miss answers, versions, and failovers of the store. No
// member hears an older version after a newer one, none hears one that a present member has not prepared, and
// once it is quiet all have the same.
TEST_F(VersionGroupsTest, RandomFaults_AnnounceNothingOlderAndNothingUnprepared) {
  for (const OnLostMember policy : {OnLostMember::kWait, OnLostMember::kDrop}) {
    for (uint32_t seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(absl::StrCat("policy ", static_cast<int>(policy), ", seed ", seed));
      std::mt19937 random(seed);
      const auto pick = [&](int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); };
      struct Process {
        int starts = 1;
        uint64_t prepared = 0, preparing = 0, known = 0;
        std::set<uint64_t> had = {};  // prepared by the process that the store knows by this name
        bool began = true;            // the store has heard this process
      };
      groups_ = std::make_unique<VersionGroups>();
      catalog_ = std::make_unique<Catalog>(Retention());
      announcements_ = Announcements();
      revision_ = 0;
      size_ = 3;
      on_lost_ = policy;
      std::map<std::string, Process> processes = {{"a", {}}, {"b", {}}, {"c", {}}};
      uint64_t announced_before = 0;
      const auto step = [&](const std::string& name, bool loses) {
        Process& process = processes[name];
        if (!std::exchange(process.began, true)) process.had.clear();
        if (process.preparing != 0 && pick(2) == 0) {
          process.prepared = process.preparing;
          process.had.insert(process.prepared);
          process.preparing = 0;
        }
        GroupCall call = Call(name, process.prepared, process.known);
        call.instance = absl::StrCat(name, process.starts);
        call.preparing = process.preparing;
        const auto answer = Poll(call);
        if (const AnnouncementRecord* record = announcements_.Find(kName);
            record != nullptr && record->revision != announced_before) {
          ASSERT_GT(record->revision, announced_before);
          announced_before = record->revision;
          for (const std::string& member : record->members) {
            ASSERT_TRUE(processes[member].had.contains(record->revision)) << member;
          }
          if (policy == OnLostMember::kWait) {
            ASSERT_THAT(record->members, ElementsAre("a", "b", "c"));
          }
        }
        if (absl::IsAborted(answer.status())) {
          process = {.starts = process.starts + 1, .had = process.had, .began = false};
          return;
        }
        ASSERT_TRUE(answer.ok()) << answer.status();
        if (loses || !answer->has_value()) return;
        if ((*answer)->announced.has_value()) {
          ASSERT_GT((*answer)->announced->revision, process.known);
          process.known = (*answer)->announced->revision;
        }
        if ((*answer)->prepare.has_value()) process.preparing = (*answer)->prepare->revision;
      };
      for (int i = 0; i < 300; ++i) {
        now_ += absl::Milliseconds(pick(1500));
        const std::string name(1, static_cast<char>('a' + pick(3)));
        switch (pick(20)) {
          case 0:
            FailOver();
            break;
          case 1:
            processes[name] = {
                .starts = processes[name].starts + 1, .had = processes[name].had, .began = false};
            break;
          case 2:
          case 3:
          case 4:
            Publish();
            break;
          case 5:
            now_ += absl::Seconds(pick(15));
            groups_->Expire(now_);
            break;
          default:
            step(name, /*loses=*/pick(8) == 0);
        }
        if (HasFatalFailure()) return;
      }
      Publish();
      for (int i = 0; i < 60; ++i) {
        for (const char* name : {"a", "b", "c"}) step(name, /*loses=*/false);
      }
      for (const auto& [name, process] : processes) EXPECT_EQ(process.known, revision_) << name;
    }
  }
}

}  // namespace
}  // namespace tensorcast::global_store
