#include "daemon/sources/source_finder.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>

#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/memory_objects.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "daemon/global_store_link/fake_global_store.h"
#include "daemon/sources/fake_peers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/convert/convert.h"
#include "transport/loopback/loopback_transport.h"

namespace tensorcast::daemon::source_finder_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Property;
using ::testing::UnorderedElementsAre;

// An image in the test's own memory, served over loopback.
// What becomes of the registration of a GPU's memory.
absl::Status NoRegistrations() { return absl::ResourceExhaustedError("no registration is left"); }

class PlainImage : public transport::ServedImage {
 public:
  explicit PlainImage(ConstHostSpan bytes, std::shared_ptr<const Availability> availability = nullptr)
      : bytes_(bytes), availability_(std::move(availability)) {}
  uint64_t image_bytes() const override { return bytes_.size(); }
  bool in_place() const override { return true; }
  std::vector<ConstHostSpan> Segments(uint64_t offset, uint64_t bytes) const override {
    return {bytes_.subspan(offset, bytes)};
  }
  absl::StatusOr<transport::ServedPiece> Read(uint64_t offset, uint64_t bytes) override {
    return transport::ServedPiece{.bytes = bytes_.subspan(offset, bytes), .hold = nullptr};
  }
  std::shared_ptr<const Availability> availability() const override { return availability_; }

 private:
  const ConstHostSpan bytes_;
  const std::shared_ptr<const Availability> availability_;  // null: all of it is there
};

class ProviderTest : public ::testing::Test {
 protected:
  ProviderTest()
      : link_(Options()),
        devices_(CreateNullRuntime()),
        lane_(transport::NewLoopbackTransport(
            {.devices = devices_.get(), .before_register_device = [] { return NoRegistrations(); }})) {
    memory_.resize(2 * artifact_.image.size());
    std::copy(artifact_.image.begin(), artifact_.image.end(), memory_.begin());
    EXPECT_TRUE(lane_->RegisterMemory(memory_.data(), memory_.size()).ok());
    serving_ = *lane_->Serve(
        std::make_shared<PlainImage>(ConstHostSpan(memory_).first(artifact_.image.size())), /*receiver=*/"");
    peers_.open = [this](const v1::OpenPullRequest&) { return Opened(); };
    store_.knows_node = true;
  }

  // What the source answers to an OpenPull.
  v1::OpenPullResponse Opened() const {
    v1::OpenPullResponse opened;
    opened.set_pull_descriptor(serving_->descriptor());
    return opened;
  }

  GlobalStoreLink::Options Options() {
    GlobalStoreLink::Options options{.client = &store_, .feed = &feed_};
    options.node.set_node_id("me");
    options.node.set_host_id("my host");
    return options;
  }

  std::shared_ptr<SourceProvider> Provider(const std::string& lane = "") {
    return finder_.Find({.manifest = artifact_.manifest, .destination = {}, .lane = lane});
  }

  void Offer(const std::string& grant_id, const std::string& lane = "loopback") {
    store_.offers.emplace_back();
    AddGrant(store_.offers.back(), grant_id, lane);
  }

  void AddGrant(v1::RequestReplicaTransportResponse& offer, const std::string& grant_id,
                const std::string& lane = "loopback") {
    v1::TransportGrant* grant = offer.add_grants();
    grant->set_grant_id(grant_id);
    grant->set_lane(lane);
    grant->mutable_source()->set_name("source of " + grant_id);
    grant->mutable_source()->set_node_id("node of " + grant_id);
    grant->mutable_source()->add_lanes("loopback");
    grant->mutable_replica()->set_replica_id("replica of " + grant_id);
    grant->mutable_replica()->set_artifact_id(artifact_.manifest->id());
  }

  // The next answer: no node has it yet. Without `retry` the time is unknown.
  void TellToWait(const std::string& what, bool retry = true) {
    v1::RequestReplicaTransportResponse wait;
    wait.add_waiting_for(what);
    if (retry) wait.mutable_retry_after()->set_nanos(1'000'000);
    store_.offers.push_back(wait);
  }
  // The same replica, granted as another transport.
  void OfferReplica(const std::string& grant_id, const std::string& replica_id) {
    Offer(grant_id);
    store_.offers.back().mutable_grants(0)->mutable_replica()->set_replica_id(replica_id);
    store_.offers.back().mutable_grants(0)->mutable_source()->set_node_id("node of " + replica_id);
  }

  // As the engine takes them: the first when it needs one, the others beside it.
  std::vector<std::unique_ptr<ChunkSource>> TakeSources(SourceProvider& provider, size_t count) {
    std::vector<std::unique_ptr<ChunkSource>> sources;
    while (sources.size() < count) {
      absl::StatusOr<MoreSources> more = provider.Next(context_, {}, /*needed=*/sources.empty());
      if (!more.ok()) {
        ADD_FAILURE() << more.status();
        break;
      }
      for (std::unique_ptr<ChunkSource>& source : more->sources) sources.push_back(std::move(source));
      EXPECT_TRUE(sources.size() == count || more->look_again == absl::ZeroDuration());
    }
    return sources;
  }
  // How the grant ended, once that was told; UNSPECIFIED: it did not end yet.
  v1::TransportOutcome OutcomeOf(const std::string& grant_id) {
    background_.Run([] {});
    for (const auto& completed : store_.completed) {
      if (completed.grant_id() == grant_id) return completed.outcome();
    }
    return v1::TRANSPORT_OUTCOME_UNSPECIFIED;
  }

  absl::Status FetchFirstChunk(ChunkSource& source) {
    const ByteRange range = artifact_.layout.chunk(0);
    const HostSpan destination(memory_.data() + artifact_.image.size(), range.bytes);
    auto fetched = source.Fetch(context_, {.chunk = 0, .range = range, .destination = {&destination, 1}});
    if (fetched.ok()) {
      EXPECT_TRUE(std::equal(destination.begin(), destination.end(), artifact_.image.begin()));
    }
    return fetched.status();
  }

  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 3);
  const RequestContext context_ = RequestContext::Background(absl::Seconds(20));
  std::vector<std::byte> memory_;
  FakeGlobalStore store_;
  FakePeers peers_;
  ReplicaFeed feed_{nullptr};
  GlobalStoreLink link_;
  PeerPools pools_;
  RunningGrants running_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<transport::Transport> lane_;
  std::unique_ptr<transport::Serving> serving_;
  LocalAttacher attacher_{&peers_, &pools_, devices_.get(), absl::Seconds(10)};
  GrantedSourceOpener opener_{{.node_id = "me",
                               .transports = {lane_.get()},
                               .local = &attacher_,
                               .peers = &peers_,
                               .peer_timeout = absl::Seconds(10)}};
  TaskLoop background_;  // ends what the opener opens
  std::shared_ptr<ImportRoots> roots_ = std::make_shared<ImportRoots>();
  FindGrantShare find_share_;  // empty: no transfer is known
  SourceFinder finder_{{.grants = {.global_store = &store_,
                                   .link = &link_,
                                   .peers = &peers_,
                                   .opener = &opener_,
                                   .running = &running_,
                                   .background = &background_,
                                   .find_share = &find_share_},
                        .devices = devices_.get(),
                        .objects = roots_}};
};

TEST_F(ProviderTest, Grant_BecomesSourceAndIsCompletedAsSucceeded) {
  Offer("t1");
  auto provider = Provider();
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().lane, "loopback");
  EXPECT_EQ((*source)->info().name, "source of t1");
  EXPECT_TRUE(FetchFirstChunk(**source).ok());
  EXPECT_THAT(running_.Ids(), ElementsAre("t1"));
  source->reset();
  provider->Finished(absl::OkStatus(), {});
  provider.reset();
  background_.Run([] {});
  EXPECT_THAT(running_.Ids(), ElementsAre());
  EXPECT_THAT(peers_.closed(), ElementsAre("t1"));
  ASSERT_EQ(store_.completed.size(), 1);
  EXPECT_EQ(store_.completed.front().outcome(), v1::TRANSPORT_OUTCOME_SUCCEEDED);
}

TEST_F(ProviderTest, EndOfGrant_TellsTransferAndItsBytes) {
  TransferReport transfer{.transfer_id = "the transfer"};
  transfer.sources.push_back({.source = {.grant_id = "t1"}, .bytes = 4096});
  find_share_ = [&](std::string_view grant_id) { return FindShare({TransferReport(), transfer}, grant_id); };
  Offer("t1");
  auto provider = Provider();
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  source->reset();
  provider->Finished(absl::OkStatus(), {});
  provider.reset();
  background_.Run([] {});
  ASSERT_EQ(store_.completed.size(), 1);
  EXPECT_EQ(store_.completed.front().transfer_id(), "the transfer");
  EXPECT_EQ(store_.completed.front().bytes(), 4096);
  EXPECT_EQ(FindShare({transfer}, "t2"), std::nullopt);
}

TEST_F(ProviderTest, EndOfGrantWithoutReport_TellsBytesOfPull) {
  Offer("t1");
  auto provider = Provider();
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(FetchFirstChunk(**source).ok());
  source->reset();
  provider->Finished(absl::OkStatus(), {});
  provider.reset();
  background_.Run([] {});
  ASSERT_EQ(store_.completed.size(), 1);
  EXPECT_EQ(store_.completed.front().transfer_id(), "");
  EXPECT_EQ(store_.completed.front().bytes(),
            lane_->counts_served() ? artifact_.layout.chunk(0).bytes : uint64_t{0});
}

TEST_F(ProviderTest, OpenPullWithoutAnswer_IsClosed) {
  Offer("t1");
  Offer("t2");
  // As one that was cancelled when the source had opened it; and one that was never opened.
  peers_.open = [](const v1::OpenPullRequest& request) -> absl::StatusOr<v1::OpenPullResponse> {
    if (request.grant_id() == "t1") return absl::CancelledError("CANCELLED");
    return absl::PermissionDeniedError("not here");
  };
  auto provider = Provider();
  EXPECT_FALSE(testing::NextOf(*provider, context_).ok());
  provider.reset();
  background_.Run([] {});
  EXPECT_THAT(peers_.closed(), ElementsAre("t1"));
}

TEST_F(ProviderTest, CorruptSource_IsReportedAndExcluded) {
  Offer("t1");
  Offer("t2");
  auto provider = Provider();
  auto first = testing::NextOf(*provider, context_);
  ASSERT_TRUE(first.ok());
  SourceFailure failure{
      .source = (*first)->info(), .status = absl::DataLossError("chunk 1"), .corrupt = true};
  first->reset();
  auto second = testing::NextOf(*provider, context_, &failure);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->info().name, "source of t2");
  failure.source = (*second)->info();
  second->reset();
  EXPECT_EQ(testing::NextOf(*provider, context_, &failure).status().code(), absl::StatusCode::kDataLoss);
  background_.Run([] {});
  ASSERT_EQ(store_.completed.size(), 2);
  EXPECT_TRUE(store_.completed.front().source_corrupt());
  EXPECT_EQ(store_.completed.front().outcome(), v1::TRANSPORT_OUTCOME_FAILED);
  EXPECT_THAT(store_.asked.back().excluded_replicas(),
              ElementsAre("node of t1/replica of t1", "node of t2/replica of t2"));
  EXPECT_THAT(store_.asked.back().corrupt_replicas(),
              ElementsAre("node of t1/replica of t1", "node of t2/replica of t2"));
}

TEST_F(ProviderTest, UnreachableSource_IsSkipped) {
  Offer("t1");
  Offer("t2");
  peers_.open = [this](const v1::OpenPullRequest& request) -> absl::StatusOr<v1::OpenPullResponse> {
    if (request.grant_id() == "t1") return absl::UnavailableError("no answer");
    return Opened();
  };
  auto provider = Provider();
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().name, "source of t2");
  EXPECT_THAT(running_.Ids(), ElementsAre("t2"));
}

TEST_F(ProviderTest, FailedAttach_FallsBackToPullWithSameGrant) {
  Offer("t1", "local");
  auto source = testing::NextOf(*Provider(), context_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().lane, "loopback");
}

// The warnings that are logged while it lives.
class Warnings final : public absl::LogSink {
 public:
  Warnings() { absl::AddLogSink(this); }
  ~Warnings() override { absl::RemoveLogSink(this); }
  void Send(const absl::LogEntry& entry) override {
    if (entry.log_severity() == absl::LogSeverity::kWarning) lines.emplace_back(entry.text_message());
  }
  std::vector<std::string> lines;
};

TEST_F(ProviderTest, PeerWithFailingFasterLane_IsWarnedAboutOnce) {
  const Warnings warnings;
  for (int i = 0; i < 2; ++i) {
    Offer("t1", "local");
    EXPECT_TRUE(testing::NextOf(*Provider(), context_).ok());
  }
  EXPECT_THAT(warnings.lines,
              ElementsAre(AllOf(HasSubstr("source of t1 over the lane loopback, since the faster lane local"),
                                HasSubstr("no answer"))));
}

TEST_F(ProviderTest, PeerWithoutDirectGpuPath_IsWarnedAboutOnce) {
  const Warnings warnings;
  for (int i = 0; i < 2; ++i) {
    Offer("t1");
    const auto source = testing::NextOf(*Provider(), context_);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->PrepareDevice({.device = 0, .address = 0x1000}, 4096), NoRegistrations());
  }
  EXPECT_THAT(warnings.lines,
              ElementsAre(AllOf(HasSubstr("from source of t1 to a GPU through host memory"),
                                HasSubstr("the lane loopback"), HasSubstr("no registration is left"))));
}

TEST_F(ProviderTest, RequiredLane_IsNotReplacedByOtherLane) {
  Offer("t1", "local");
  auto provider = Provider("local");
  const absl::Status status = testing::NextOf(*provider, context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peers_.opened().empty());
  EXPECT_EQ(store_.asked.front().required_lane(), "local");
}

TEST_F(ProviderTest, UnreachableSources_AreListedInTheError) {
  Offer("t1");
  peers_.open = nullptr;
  const absl::Status status = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("source of t1 (loopback): no answer"));
}

TEST_F(ProviderTest, NoSource_IsNotFoundWithReasonOfGlobalStore) {
  v1::RequestReplicaTransportResponse nothing;
  nothing.set_no_source_reason("no other node has a replica");
  store_.offers.push_back(nothing);
  const absl::Status status = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no other node has a replica"));
}

TEST_F(ProviderTest, FillingReplica_IsWaitedForAndReported) {
  TellToWait("the replica that fills at b");
  TellToWait("the replica that fills at b");
  Offer("t1");
  auto provider = Provider();
  std::vector<std::string> told;
  provider->ObserveWaits([&](const std::string& what) { told.push_back(what); });
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().name, "source of t1");
  EXPECT_THAT(told, ElementsAre("the replica that fills at b", "the replica that fills at b", ""));
}

TEST_F(ProviderTest, WaitAfterFailedSource_ErrorNamesTheSource) {
  Offer("t1");
  peers_.open = [](const v1::OpenPullRequest&) { return absl::NotFoundError("the replica is gone"); };
  TellToWait("the replica that fills at b");
  const absl::Status status = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("source of t1 (loopback): the replica is gone"));
}

TEST_F(ProviderTest, FailedWait_IsUnavailableAndNamesWhatWasAwaited) {
  TellToWait("the replica that fills at b");
  const absl::Status status = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in vain for the replica that fills at b"));
}

TEST_F(ProviderTest, UnreachableNodeWithCopy_IsUnavailableAndNamed) {
  TellToWait("node b, which has a copy", /*retry=*/false);
  const absl::Status status = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node b, which has a copy"));
}

TEST_F(ProviderTest, CancelledWait_ErrorNamesWhatWasAwaited) {
  TellToWait("the replica that fills at b");
  store_.offers.back().mutable_retry_after()->set_seconds(3600);
  RequestContext cancelled = context_;
  cancelled.deadline = SteadyTime::InfiniteFuture();
  cancelled.cancellation = Cancellation();
  auto provider = Provider();
  provider->ObserveWaits([&](const std::string&) { cancelled.cancellation.Cancel(); });
  const absl::Status status = testing::NextOf(*provider, cancelled).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the replica that fills at b"));
}

TEST_F(ProviderTest, SlowSource_IsAskedAgainButCorruptOneIsNot) {
  OfferReplica("t1", "slow");
  OfferReplica("t2", "lies");
  OfferReplica("t3", "slow");
  auto provider = Provider();
  SourceFailure failure{.status = absl::DeadlineExceededError("no byte came"), .delivered = 1};
  auto source = testing::NextOf(*provider, context_);
  for (const char* again : {"t2", "t3"}) {
    ASSERT_TRUE(source.ok()) << source.status();
    failure.source = (*source)->info();
    source->reset();
    source = testing::NextOf(*provider, context_, &failure);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->info().name, absl::StrCat("source of ", again));
    failure = {.status = absl::DataLossError("chunk 1"), .corrupt = true};
  }
  EXPECT_THAT(store_.asked.back().slow_replicas(), ElementsAre("node of slow/slow"));
  EXPECT_THAT(store_.asked.back().excluded_replicas(), ElementsAre("node of lies/lies"));
  EXPECT_THAT(store_.asked.back().corrupt_replicas(), ElementsAre("node of lies/lies"));
}

TEST_F(ProviderTest, UnreachableReplica_IsExcludedAfterThreeAttempts) {
  for (const char* grant_id : {"t1", "t2", "t3"}) OfferReplica(grant_id, "dead");
  peers_.open = nullptr;
  EXPECT_EQ(testing::NextOf(*Provider(), context_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(peers_.opened().size(), 3u);
  EXPECT_THAT(store_.asked.back().excluded_replicas(), ElementsAre("node of dead/dead"));
}

TEST_F(ProviderTest, OriginOfOtherNode_IsNotTried) {
  v1::RequestReplicaTransportResponse elsewhere;
  elsewhere.add_origins()->set_node_id("another");
  store_.offers.push_back(elsewhere);
  EXPECT_EQ(testing::NextOf(*Provider(), context_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProviderTest, OriginBlockedForAMoment_IsUnavailable) {
  const tensorcast::testing::TempFolder folder;
  const std::string path = folder.File("m.safetensors");
  std::ofstream(path) << "not looked at";
  auto roots = ImportRoots::Beneath({folder.path()});
  ASSERT_TRUE(roots.ok()) << roots.status();
  *roots_ = *std::move(roots);
  const auto found = roots_->Find({}, path);
  ASSERT_TRUE(found.ok()) << found.status();
  v1::RequestReplicaTransportResponse own;
  *own.add_origins() = rpc::ToProto(Origin{.node_id = "me", .objects = {found->object->identity()}});
  own.set_no_source_reason("no other node has a replica");

  store_.offers = {own, own};
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status full = testing::NextOf(*Provider(), context_).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable) << full;

  ASSERT_EQ(unlink(path.c_str()), 0);
  const absl::Status gone = testing::NextOf(*Provider(), context_).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound) << gone;
}

// An object store has the artifact, and the global store says that it is to be read.
class SharedOriginTest : public ProviderTest {
 protected:
  void SetUp() override {
    const tensorcast::testing::TempFolder folder;
    const std::string path = folder.File("m.safetensors");
    ASSERT_TRUE(WriteSafetensors(path, artifact_.layout, {}, artifact_.image).ok());
    std::ifstream file(path, std::ios::binary);
    objects_->Put(kUri, {std::istreambuf_iterator<char>(file), {}});
    const auto found = objects_->Find({}, kUri);
    ASSERT_TRUE(found.ok()) << found.status();
    v1::RequestReplicaTransportResponse told;
    *told.mutable_origin_to_read() =
        rpc::ToProto(Origin{.node_id = "another", .objects = {found->object->identity()}});
    told.set_origin_share(3);
    told.set_origin_shares(16);
    told.mutable_look_again();  // at once
    store_.offers = {told};
    provider_ = SourceFinder({.grants = {.global_store = &store_,
                                         .link = &link_,
                                         .peers = &peers_,
                                         .opener = &opener_,
                                         .running = &running_,
                                         .background = &background_},
                              .devices = devices_.get(),
                              .objects = objects_})
                    .Find({.manifest = artifact_.manifest, .destination = {}, .lane = ""});
  }

  static constexpr char kUri[] = "mem://models/m.safetensors";
  const std::shared_ptr<testing::MemoryObjects> objects_ = std::make_shared<testing::MemoryObjects>();
  std::shared_ptr<SourceProvider> provider_;
};

TEST_F(SharedOriginTest, SharedOrigin_IsReadInItsShareBesideGrants) {
  Offer("t1");
  const std::vector<std::unique_ptr<ChunkSource>> sources = TakeSources(*provider_, 2);
  ASSERT_EQ(sources.size(), 2);
  EXPECT_TRUE(sources[0]->info().outside);
  EXPECT_EQ(sources[0]->info().share, 3u);
  EXPECT_EQ(sources[0]->info().shares, 16u);
  EXPECT_TRUE(FetchFirstChunk(*sources[0]).ok());
  EXPECT_EQ(sources[1]->info().name, "source of t1") << "it is not instead of others";
  EXPECT_EQ(store_.asked.back().held_origin(), kUri);
  EXPECT_THAT(store_.asked.back().failed_origins(), IsEmpty());
}

TEST_F(SharedOriginTest, SharedOriginThatBreaksOff_IsToldAndNotReadAgain) {
  std::vector<std::unique_ptr<ChunkSource>> sources = TakeSources(*provider_, 1);
  ASSERT_EQ(sources.size(), 1);
  const SourceFailure broke{.source = sources[0]->info(), .status = absl::UnavailableError("503")};
  sources.clear();
  store_.offers = {};
  const absl::Status left = provider_->Next(context_, {&broke, 1}, /*needed=*/true).status();
  EXPECT_EQ(left.code(), absl::StatusCode::kUnavailable) << left;
  EXPECT_EQ(store_.asked.back().held_origin(), "");
  EXPECT_THAT(store_.asked.back().failed_origins(), ElementsAre(kUri));
}

TEST_F(SharedOriginTest, SharedOriginThatChanged_LeavesTheBytesToGrants) {
  objects_->Put(kUri, "another model");
  Offer("t1");
  auto source = testing::NextOf(*provider_, context_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().name, "source of t1");
  EXPECT_THAT(store_.asked.back().failed_origins(), ElementsAre(kUri));
}

TEST_F(ProviderTest, OriginReadError_DecidesErrorCode) {
  for (const auto& [failure, code] :
       {std::pair(absl::ResourceExhaustedError("no memory"), absl::StatusCode::kUnavailable),
        std::pair(absl::FailedPreconditionError("it changed"), absl::StatusCode::kNotFound),
        std::pair(absl::DataLossError("a bad sector"), absl::StatusCode::kDataLoss)}) {
    const SourceFailure of_origin{.source = {SourceType::kDisk, "disk", "origin"}, .status = failure};
    EXPECT_EQ(testing::NextOf(*Provider(), context_, &of_origin).status().code(), code) << failure;
  }
}

TEST_F(ProviderTest, SeveralGrants_AreOpenedSideBySideAndEachEndsForItself) {
  Offer("t1");
  AddGrant(store_.offers.back(), "t2");
  AddGrant(store_.offers.back(), "t3");
  store_.offers.back().mutable_look_again()->set_seconds(7);
  // None is answered before all were asked.
  std::atomic<int> asked = 0;
  peers_.open = [&](const v1::OpenPullRequest&) {
    ++asked;
    EXPECT_TRUE(tensorcast::testing::Eventually([&] { return asked == 3; }));
    return Opened();
  };
  auto provider = Provider();
  std::vector<std::unique_ptr<ChunkSource>> sources = TakeSources(*provider, 3);
  std::ranges::sort(sources, {}, [](const auto& source) { return source->info().name; });
  EXPECT_EQ(store_.asked.size(), 1u);
  peers_.open = [this](const v1::OpenPullRequest&) { return Opened(); };
  EXPECT_THAT(running_.Ids(), ElementsAre("t1", "t2", "t3"));
  for (auto& source : sources) EXPECT_TRUE(FetchFirstChunk(*source).ok());

  const SourceFailure failure{.source = sources[1]->info(), .status = absl::UnavailableError("it died")};
  sources.erase(sources.begin() + 1);
  Offer("t4");
  auto more = provider->Next(context_, {&failure, 1}, /*needed=*/false);
  while (more.ok() && more->sources.empty()) more = provider->Next(context_, {}, /*needed=*/false);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->sources.front()->info().name, "source of t4");
  EXPECT_THAT(store_.asked.back().held_grants(), ElementsAre("t1", "t3"));
  EXPECT_THAT(store_.asked.back().excluded_replicas(), ElementsAre("node of t2/replica of t2"))
      << "while others give, one that gave nothing is not asked again";
  sources.clear();
  more->sources.clear();
  provider->Finished(absl::OkStatus(), {});
  background_.Run([] {});
  EXPECT_THAT(running_.Ids(), ElementsAre());
  EXPECT_THAT(peers_.closed(), UnorderedElementsAre("t2", "t1", "t3", "t4"));
  std::map<std::string, v1::TransportOutcome> outcomes;
  for (const auto& completed : store_.completed) outcomes[completed.grant_id()] = completed.outcome();
  EXPECT_EQ(outcomes["t2"], v1::TRANSPORT_OUTCOME_FAILED);
  for (const char* grant : {"t1", "t3", "t4"}) {
    EXPECT_EQ(outcomes[grant], v1::TRANSPORT_OUTCOME_SUCCEEDED) << grant;
  }
}

TEST_F(ProviderTest, WholeReplicaOnThisHost_IsOpenedAlone) {
  Offer("t1", "local");
  AddGrant(store_.offers.back(), "t2", "local");
  for (v1::TransportGrant& grant : *store_.offers.back().mutable_grants()) {
    grant.mutable_replica()->set_state(v1::REPLICA_STATE_READY);
  }
  const auto provider = Provider();
  const auto source = testing::NextOf(*provider, context_);  // attaching fails here, and a pull is opened
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->info().name, "source of t1");
  EXPECT_THAT(running_.Ids(), ElementsAre("t1"));
}

TEST_F(ProviderTest, SilentPeer_IsOvertakenAndNotOpenedByTheNextTransfer) {
  peers_.silent = {"t1"};
  Offer("t1");
  AddGrant(store_.offers.back(), "t2");
  {
    auto provider = Provider();
    const auto sources = TakeSources(*provider, 1);
    ASSERT_THAT(sources,
                ElementsAre(Property(
                    &std::unique_ptr<ChunkSource>::get,
                    Property(&ChunkSource::info, ::testing::Field(&SourceInfo::name, "source of t2")))));
    while (OutcomeOf("t1") == v1::TRANSPORT_OUTCOME_UNSPECIFIED) {
      auto more = provider->Next(context_, {}, /*needed=*/false);
      ASSERT_TRUE(more.ok()) << more.status();
      EXPECT_TRUE(more->sources.empty());
    }
    EXPECT_EQ(OutcomeOf("t1"), v1::TRANSPORT_OUTCOME_FAILED);
    EXPECT_THAT(peers_.closed(), ElementsAre("t1"));
    EXPECT_THAT(provider->TakeUnopened(), ::testing::SizeIs(1));
  }
  background_.Run([] {});
  store_.completed.clear();
  Offer("t1");
  AddGrant(store_.offers.back(), "t2");
  const size_t opened_before = peers_.opened().size();
  auto provider = Provider();
  const auto sources = TakeSources(*provider, 1);
  EXPECT_EQ(OutcomeOf("t1"), v1::TRANSPORT_OUTCOME_CANCELLED);
  EXPECT_EQ(peers_.opened().size(), opened_before + 1) << "of t2 alone";
}

TEST_F(ProviderTest, SilentPeerAtEndOfTransfer_IsReportedAsFailed) {
  peers_.silent = {"t1"};
  Offer("t1");
  AddGrant(store_.offers.back(), "t2");
  auto provider = Provider();
  TakeSources(*provider, 1).clear();
  provider->Finished(absl::OkStatus(), {});
  EXPECT_EQ(OutcomeOf("t1"), v1::TRANSPORT_OUTCOME_FAILED);
  EXPECT_EQ(OutcomeOf("t2"), v1::TRANSPORT_OUTCOME_SUCCEEDED);
}

TEST_F(ProviderTest, SilentOnlyPeer_MakesFinderRequestOthers) {
  peers_.silent = {"t1"};
  Offer("t1");
  Offer("t2");
  auto provider = Provider();
  const auto sources = TakeSources(*provider, 1);
  EXPECT_EQ(sources.front()->info().name, "source of t2");
  EXPECT_THAT(store_.asked.back().slow_replicas(), ElementsAre("node of t1/replica of t1"));
}

TEST_F(ProviderTest, RestingOnlyPeer_IsOpenedAnyway) {
  peers_.silent = {"t1"};
  Offer("t1");
  Offer("t2");
  auto first = Provider();
  TakeSources(*first, 1).clear();
  first->Finished(absl::OkStatus(), {});
  EXPECT_EQ(OutcomeOf("t1"), v1::TRANSPORT_OUTCOME_FAILED);
  peers_.silent.clear();
  store_.offers.clear();
  Offer("t1");
  store_.offers.emplace_back();
  auto provider = Provider();
  EXPECT_EQ(TakeSources(*provider, 1).front()->info().name, "source of t1");
}

TEST_F(ProviderTest, StalledSources_MakeFinderRequestOthers) {
  Offer("t1");
  auto provider = Provider();
  const auto first = TakeSources(*provider, 1);
  EXPECT_TRUE(provider->NoteStall());
  Offer("t2");
  auto more = provider->Next(context_, {}, /*needed=*/false);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_THAT(store_.asked.back().held_grants(), ElementsAre("t1"));
  EXPECT_THAT(store_.asked.back().slow_replicas(), ElementsAre("node of t1/replica of t1"));
}

TEST_F(ProviderTest, RequestsForMoreSources_AreLimited) {
  Offer("t1");
  auto provider = Provider();
  ASSERT_TRUE(provider->Next(context_, {}, true).ok());
  for (int i = 0; i < 20; ++i) {
    auto more = provider->Next(context_, {}, false);
    ASSERT_TRUE(more.ok()) << more.status();
    EXPECT_TRUE(more->sources.empty());
  }
  EXPECT_EQ(store_.asked.size(), 1u + 6u);
}

TEST_F(ProviderTest, SixSources_AreEnoughForOneTransfer) {
  store_.offers.emplace_back();
  for (const char* grant_id : {"t1", "t2", "t3", "t4", "t5", "t6"}) AddGrant(store_.offers.back(), grant_id);
  auto provider = Provider();
  const auto sources = TakeSources(*provider, 6);
  auto more = provider->Next(context_, {}, /*needed=*/false);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(more->sources.empty());
  EXPECT_EQ(store_.asked.size(), 1u);
  EXPECT_EQ(store_.asked.front().sources(), 6u);
}

TEST_F(ProviderTest, SixSources_AskAgainWhereTheGlobalStoreWantsIt) {
  store_.offers.emplace_back();
  for (const char* grant_id : {"t1", "t2", "t3", "t4", "t5", "t6"}) AddGrant(store_.offers.back(), grant_id);
  store_.offers.back().mutable_look_again()->set_nanos(1);
  auto provider = Provider();
  const auto sources = TakeSources(*provider, 6);
  ASSERT_TRUE(provider->Next(context_, {}, /*needed=*/false).ok());
  EXPECT_EQ(store_.asked.size(), 2u);
}

TEST_F(ProviderTest, StalledSourceOnSameHost_MakesFinderRequestOthers) {
  const auto stopped =
      std::make_shared<Availability>(artifact_.layout.image_bytes, artifact_.layout.chunk_bytes);
  serving_ = *lane_->Serve(
      std::make_shared<PlainImage>(ConstHostSpan(memory_).first(artifact_.image.size()), stopped),
      /*receiver=*/"");
  Offer("t1");
  store_.offers.back().mutable_grants(0)->mutable_source()->set_host_id("my host");
  Offer("t2");
  store_.offers.back().mutable_grants(0)->mutable_source()->set_host_id("another");
  auto provider = Provider();
  auto first = provider->Next(context_, {}, /*needed=*/true);
  ASSERT_TRUE(first.ok()) << first.status();
  absl::Duration look_again = first->look_again;
  absl::StatusOr<MoreSources> more;
  do {
    ASSERT_LT(look_again, absl::Seconds(1));
    ASSERT_EQ(store_.asked.size(), 1u) << "it is asked before its patience ends";
    absl::SleepFor(look_again);  // as the engine does
    more = provider->Next(context_, {}, /*needed=*/false);
    ASSERT_TRUE(more.ok()) << more.status();
    look_again = more->look_again;
  } while (more->sources.empty());
  EXPECT_EQ(more->sources.front()->info().name, "source of t2");
  EXPECT_THAT(store_.asked.back().held_grants(), ElementsAre("t1"));
  EXPECT_THAT(store_.asked.back().slow_replicas(), ElementsAre("node of t1/replica of t1"));
  EXPECT_EQ(look_again, absl::InfiniteDuration()) << "there is another now";
  first->sources.clear();
}

TEST_F(ProviderTest, UnreachableGlobalStore_IsUnavailable) {
  store_.down = absl::UnavailableError("gone");
  EXPECT_EQ(testing::NextOf(*Provider(), context_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ProviderTest, RevokedGrant_EndsItsPull) {
  Offer("t1");
  auto provider = Provider();
  auto source = testing::NextOf(*provider, context_);
  ASSERT_TRUE(source.ok());
  running_.Revoke({"t1", "unknown"});
  EXPECT_EQ(FetchFirstChunk(**source).code(), absl::StatusCode::kAborted);
}

TEST_F(ProviderTest, CancelledRequest_AsksNoGlobalStore) {
  Offer("t1");
  RequestContext cancelled = context_;
  cancelled.cancellation = Cancellation();
  cancelled.cancellation.Cancel();
  EXPECT_EQ(testing::NextOf(*Provider(), cancelled).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(store_.asked.empty());
}

TEST_F(ProviderTest, DroppedProvider_EndsItsGrantAsCancelled) {
  Offer("t1");
  auto provider = Provider();
  ASSERT_TRUE(testing::NextOf(*provider, context_).ok());
  provider.reset();
  background_.Run([] {});
  ASSERT_EQ(store_.completed.size(), 1);
  EXPECT_EQ(store_.completed.front().outcome(), v1::TRANSPORT_OUTCOME_CANCELLED);
}

TEST(SegmentMapping, MapSegment_RefusesSizeBeyondSegment) {
  auto pool = HostPool::Create({.bytes = 4 << 20, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  const PoolSegment& segment = (*pool)->segments().front();
  auto mapping = SegmentMapping::Map(segment.fd, segment.bytes);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ((*mapping)->bytes().size(), segment.bytes);
  EXPECT_EQ(SegmentMapping::Map(segment.fd, segment.bytes + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SegmentMapping::Map(segment.fd, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PeerPools, PeerPool_IsMappedOnceAndDroppedWhenUnused) {
  constexpr uint64_t kSegment = 2 << 20;
  auto pool = HostPool::Create(
      {.bytes = 3 * kSegment, .segment_bytes = kSegment, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  std::vector<UniqueFd> fds;
  for (const PoolSegment& segment : (*pool)->segments()) fds.emplace_back(dup(segment.fd));
  const std::vector<UniqueFd> none(3);
  PeerPools pools(absl::Minutes(10));
  const HostHandles first{.pool_id = "first", .segments = {{0, kSegment}, {2, kSegment}}, .extents = {}};
  const HostHandles more{
      .pool_id = "first", .segments = {{0, kSegment}, {1, kSegment}, {2, kSegment}}, .extents = {}};
  const HostHandles second{.pool_id = "second", .segments = {{0, kSegment}}, .extents = {}};
  auto one = pools.Get("peer", first, std::span(fds).first(2));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(*one, *pools.Get("peer", first, none)) << "mapped already, the descriptors are not needed";
  auto three = pools.Get("peer", more, fds);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ((*three)[0], (*one)[0]) << "of the segments that are there none is mapped again";
  EXPECT_EQ((*three)[2], (*one)[1]);
  HostHandles larger = first;
  larger.segments[0].bytes = 2 * kSegment;
  EXPECT_EQ(pools.Get("peer", larger, none).status().code(), absl::StatusCode::kInvalidArgument);
  auto two = pools.Get("peer", second, fds);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_NE((*one)[0], (*two)[0]);
  EXPECT_EQ(pools.size(), 1);

  const auto alive = [](const std::string&) { return true; };
  const auto dead = [](const std::string&) { return false; };
  pools.Sweep(SteadyNow(), dead);
  EXPECT_EQ(pools.size(), 1) << "it is in use";
  two->clear();
  pools.Sweep(SteadyNow(), alive);
  EXPECT_EQ(pools.size(), 1);
  pools.Sweep(SteadyNow() + absl::Hours(1), alive);
  EXPECT_EQ(pools.size(), 0);
}

}  // namespace
}  // namespace tensorcast::daemon::source_finder_test
