#include "core/ingest/provider_chain.h"

#include <deque>
#include <optional>

#include "absl/strings/str_split.h"
#include "core/testing/scripted_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::provider_chain_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Of a replica of this node.
class Source final : public ChunkSource {
 public:
  explicit Source(std::string replica_id) { info_.replica_id = std::move(replica_id); }
  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return 1; }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext&, const ChunkRequest&) override {
    return absl::UnimplementedError("not here");
  }

 private:
  SourceInfo info_;
};

struct Account {
  int asked = 0;
  std::vector<std::string> ended;
};

// Gives these, one after another: id, and whether it is whole.
class Here final : public NodeProvider {
 public:
  Here(Account* account, std::deque<std::pair<std::string, bool>> gives,
       absl::Duration alone = absl::InfiniteDuration())
      : account_(account), gives_(std::move(gives)), alone_(alone) {}
  Given Next(const RequestContext&) override {
    ++account_->asked;
    if (gives_.empty()) return {};
    const auto [ids, whole] = gives_.front();
    gives_.pop_front();
    Given given{.whole = whole, .alone = alone_};
    for (const std::string_view id : absl::StrSplit(ids, ' ')) {
      given.sources.push_back(std::make_unique<Source>(std::string(id)));
    }
    return given;
  }
  void Ended(const SourceFailure& failure) override { account_->ended.push_back(failure.source.replica_id); }

 private:
  Account* const account_;
  std::deque<std::pair<std::string, bool>> gives_;  // ids, with a space between those given at once
  const absl::Duration alone_;
};

class Elsewhere final : public SourceProvider {
 public:
  absl::StatusOr<MoreSources> Next(const RequestContext&, std::span<const SourceFailure> ended,
                                   bool is_needed) override {
    ++asked;
    needed = is_needed;
    for (const SourceFailure& failure : ended) told.push_back(failure.source.replica_id);
    MoreSources more;
    more.sources.push_back(std::make_unique<Source>("elsewhere"));
    return more;
  }

  int asked = 0;
  bool needed = false;
  std::vector<std::string> told;
};

class ProviderChainTest : public ::testing::Test {
 protected:
  // The ids of the replicas of what the chain gives next.
  std::vector<std::string> Next(const std::vector<std::string>& ended = {}, bool needed = false) {
    std::vector<SourceFailure> failures;
    for (const std::string& id : ended) failures.emplace_back().source.replica_id = id;
    absl::StatusOr<MoreSources> more = chain_.Next(RequestContext(), failures, needed);
    EXPECT_TRUE(more.ok()) << more.status();
    look_again_ = more->look_again;
    std::vector<std::string> ids;
    for (const auto& source : more->sources) ids.push_back(source->info().replica_id);
    return ids;
  }

  Elsewhere elsewhere_;
  ProviderChain chain_{"a", &elsewhere_};
  Account first_;
  Account second_;
  absl::Duration look_again_;
};

TEST_F(ProviderChainTest, WholeSourceOfThisNode_IsUsedAlone) {
  chain_.Add(std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{{"r1", true}}));
  EXPECT_THAT(Next(), ElementsAre("r1"));
  EXPECT_THAT(Next(), IsEmpty());
  EXPECT_EQ(elsewhere_.asked, 0);
}

TEST_F(ProviderChainTest, PartialSource_HasNextProviderAskedAtOnce) {
  chain_.Add(std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{{"r1", false}}));
  chain_.Add(std::make_unique<Here>(&second_, std::deque<std::pair<std::string, bool>>{{"r2", false}}));
  EXPECT_THAT(Next(), ElementsAre("r1"));
  EXPECT_EQ(look_again_, absl::ZeroDuration());
  EXPECT_THAT(Next(), ElementsAre("r2"));
  EXPECT_THAT(Next(), ElementsAre("elsewhere"));
  EXPECT_TRUE(elsewhere_.needed) << "this node does not have all chunks";
  EXPECT_THAT(Next(), SizeIs(1));
  EXPECT_FALSE(elsewhere_.needed);
}

TEST_F(ProviderChainTest, WholeSourceUsedAloneForAWhile_IsThenJoinedByOthers) {
  chain_.Add(std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{{"r1", true}},
                                    /*alone=*/absl::ZeroDuration()));
  EXPECT_THAT(Next({}, /*needed=*/true), ElementsAre("r1"));
  EXPECT_EQ(look_again_, absl::ZeroDuration());
  EXPECT_THAT(Next(), ElementsAre("elsewhere"));
  EXPECT_FALSE(elsewhere_.needed) << "this node has all chunks";
}

TEST_F(ProviderChainTest, OneOfSeveralWholeSourcesFails_OthersAreAsked) {
  chain_.Add(std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{{"r1 r2", true}}));
  EXPECT_THAT(Next({}, /*needed=*/true), ElementsAre("r1", "r2"));
  EXPECT_THAT(Next(), IsEmpty());
  EXPECT_THAT(Next({"r1"}), ElementsAre("elsewhere"));
  EXPECT_TRUE(elsewhere_.needed) << "this node no longer has all chunks";
}

TEST_F(ProviderChainTest, FailedSource_IsReplacedBySameProviderFirst) {
  chain_.Add(
      std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{{"r1", true}, {"r2", true}}));
  EXPECT_THAT(Next(), ElementsAre("r1"));
  EXPECT_THAT(Next({"r1"}, /*needed=*/true), ElementsAre("r2"));
  EXPECT_THAT(first_.ended, ElementsAre("r1"));
  EXPECT_THAT(Next({"r2"}, /*needed=*/true), ElementsAre("elsewhere"));
  EXPECT_THAT(elsewhere_.told, IsEmpty()) << "they were not of that provider";
}

TEST_F(ProviderChainTest, ProviderBeforeOneThatWasAsked_IsNotAskedAgain) {
  chain_.Add(std::make_unique<Here>(&first_, std::deque<std::pair<std::string, bool>>{}));
  EXPECT_THAT(Next({}, /*needed=*/true), ElementsAre("elsewhere"));
  EXPECT_THAT(Next({"elsewhere"}, /*needed=*/true), ElementsAre("elsewhere"));
  EXPECT_EQ(first_.asked, 1);
  EXPECT_THAT(elsewhere_.told, ElementsAre("elsewhere"));
}

TEST(ProviderChain, EndedPartialSource_IsReplacedHereWithoutOtherProvider) {
  Account account;
  ProviderChain chain("a", nullptr);
  chain.Add(std::make_unique<Here>(
      &account, std::deque<std::pair<std::string, bool>>{{"partial", false}, {"whole", true}}));
  ASSERT_TRUE(chain.Next(RequestContext(), {}, /*needed=*/true).ok());
  EXPECT_EQ(chain.Next(RequestContext(), {}, /*needed=*/false).status().code(), absl::StatusCode::kNotFound);
  SourceFailure ended;
  ended.source.replica_id = "partial";
  const absl::StatusOr<MoreSources> more = chain.Next(RequestContext(), {&ended, 1}, /*needed=*/true);
  ASSERT_TRUE(more.ok()) << more.status();
  ASSERT_THAT(more->sources, SizeIs(1));
  EXPECT_EQ(more->sources[0]->info().replica_id, "whole");
}

TEST(ProviderChain, NoSourceAndNoOtherProvider_IsNotFound) {
  ProviderChain chain("a", nullptr);
  EXPECT_EQ(chain.Next(RequestContext(), {}, /*needed=*/true).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tensorcast::provider_chain_test
