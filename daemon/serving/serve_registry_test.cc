#include "daemon/serving/serve_registry.h"

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/device/fake_device.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/convert/convert.h"
#include "rpc/grant_token/grant_token.h"
#include "transport/loopback/loopback_transport.h"

namespace tensorcast::daemon::serve_registry_test {
namespace {

using testing::MakeChunkedArtifact;
using testing::TestArtifact;

// A serving that calls the hook before it ends, once.
class HookedServing : public transport::Serving {
 public:
  HookedServing(std::unique_ptr<Serving> serving, std::function<void()>* on_end)
      : serving_(std::move(serving)), on_end_(*on_end) {}
  void End() override {
    if (const auto hook = std::exchange(on_end_, nullptr)) hook();
    serving_->End();
  }
  const std::string& descriptor() const override { return serving_->descriptor(); }
  transport::ServeStats stats() const override { return serving_->stats(); }

 private:
  const std::unique_ptr<Serving> serving_;
  std::function<void()>& on_end_;
};

// The loopback transport; before it serves the next image, and before that serving ends, it calls a hook,
// once.
class HookedTransport : public transport::Transport {
 public:
  HookedTransport(std::function<void()>* on_serve, std::function<void()>* on_end)
      : on_serve_(*on_serve), on_end_(*on_end) {}
  std::string_view name() const override { return transport_->name(); }
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return transport_->RegisterMemory(base, bytes);
  }
  absl::StatusOr<std::unique_ptr<transport::Serving>> Serve(std::shared_ptr<transport::ServedImage> image,
                                                            std::string_view receiver) override {
    served_to = receiver;
    if (const auto hook = std::exchange(on_serve_, nullptr)) hook();
    TC_ASSIGN_OR_RETURN(auto serving, transport_->Serve(std::move(image), receiver));
    return std::make_unique<HookedServing>(std::move(serving), &on_end_);
  }
  absl::StatusOr<std::unique_ptr<transport::Pull>> Connect(const RequestContext& context,
                                                           std::string_view descriptor) override {
    return transport_->Connect(context, descriptor);
  }

  std::string served_to;  // the receiver that was named last

 private:
  std::function<void()>& on_serve_;
  std::function<void()>& on_end_;
  const std::unique_ptr<transport::Transport> transport_ = transport::NewLoopbackTransport();
};

// An engine with one replica in host memory and one on a fake GPU, and a loopback lane to serve them over.
class ServeRegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pool = HostPool::Create({.bytes = 32 << 20, .use_huge_pages = false, .prefault_threads = 0});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 16 << 20});
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    auto engine = StoreEngine::Create({.host_pool = pool_.get(),
                                       .devices = devices_.get(),
                                       .staging_buffers = 2,
                                       .staging_buffer_bytes = 2 << 20});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    lane_ = std::make_unique<HookedTransport>(&on_serve_, &on_end_);
    ASSERT_TRUE(lane_->RegisterMemory(pool_->base(), pool_->bytes()).ok());
    auto staging = StagingBuffers::Create(pool_.get(), 1);
    ASSERT_TRUE(staging.ok()) << staging.status();
    registry_ = std::make_unique<ServeRegistry>(
        ServeRegistry::Options{.engine = engine_.get(),
                               .devices = devices_.get(),
                               .transports = {lane_.get()},
                               .staging = *staging,
                               .grant_key = [this] { return rpc::GrantKey{std::string(32, 'k'), given_}; },
                               .name = "source",
                               .grant_life = absl::Seconds(30),
                               .staging_wait = absl::Milliseconds(50),
                               .now = [this] { return now_; }});
  }

  std::string MakeReplica(Location location) {
    auto provider = std::make_shared<testing::ScriptedProvider>(
        std::vector{testing::MakeControl(artifact_.image, testing::SourceScript{})});
    auto pending =
        engine_->Ingest(RequestContext::Background(absl::Seconds(20)),
                        {.manifest = artifact_.manifest, .location = location, .sources = provider});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(RequestContext::Background(absl::Seconds(20)));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return (*lease)->replica_id();
  }

  v1::OpenPullRequest Opening(const std::string& replica_id, const std::string& lane = "loopback",
                              const std::string& source = "source") {
    const rpc::GrantClaims claims{.grant_id = "transport",
                                  .replica_id = replica_id,
                                  .artifact_id = artifact_.manifest->id(),
                                  .receiver_node_id = "receiver",
                                  .lane = lane,
                                  .expires = now_ - given_ + absl::Seconds(30),
                                  .receiver_name = "b",
                                  .source_name = source};
    v1::OpenPullRequest opening;
    opening.set_grant_id(claims.grant_id);
    opening.set_grant_token(rpc::SignGrant(std::string(32, 'k'), claims));
    opening.set_replica_id(replica_id);
    opening.set_artifact_id(claims.artifact_id);
    opening.set_receiver_node_id(claims.receiver_node_id);
    opening.set_lane("loopback");
    return opening;
  }

  // Pulls the whole image the way a receiver does.
  absl::StatusOr<std::vector<std::byte>> Pull(const std::string& descriptor) {
    auto pull = lane_->Connect(RequestContext::Background(absl::Seconds(20)), descriptor);
    if (!pull.ok()) return pull.status();
    auto memory = pool_->Allocate(artifact_.image.size());
    EXPECT_TRUE(memory.ok()) << memory.status();
    const std::vector<HostSpan> destination = memory->Spans(0, memory->bytes());
    absl::Notification done;
    absl::Status status;
    (*pull)->Fetch(0, destination, SteadyNow() + absl::Seconds(20),
                   [&](const transport::FetchResult& result) {
                     status = result.status();
                     done.Notify();
                   });
    done.WaitForNotification();
    if (!status.ok()) return status;
    return testing::Gather(destination);
  }

  uint32_t Leases() const {
    uint32_t leases = 0;
    for (const ReplicaInfo& replica : engine_->ListReplicas()) leases += replica.leases;
    return leases;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, 80, 64 << 10);  // larger than the one staging buffer
  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  const SteadyTime given_ = SteadyTime();  // the grant key
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::function<void()> on_serve_;
  std::function<void()> on_end_;
  std::unique_ptr<HookedTransport> lane_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<ServeRegistry> registry_;
};

TEST_F(ServeRegistryTest, Pull_ServesHostMemoryUntilClosed) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_EQ(Leases(), 1);
  auto bytes = Pull(descriptor->pull_descriptor());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, artifact_.image);
  EXPECT_EQ(registry_->Close("transport", "b", absl::OkStatus()).value(), artifact_.image.size());
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
  EXPECT_EQ(registry_->Close("transport", "b", absl::OkStatus()).value(), 0);
  EXPECT_FALSE(Pull(descriptor->pull_descriptor()).ok());
}

// An ingest into host memory; its source holds back all that it is asked for.
class FillingTest : public ServeRegistryTest {
 protected:
  void SetUp() override {
    ServeRegistryTest::SetUp();
    used_before_ = pool_->stats().used_bytes;
    auto pending =
        engine_->Ingest(RequestContext::Background(absl::Seconds(20)),
                        {.manifest = artifact_.manifest,
                         .location = {LocationKind::kCpu},
                         .sources = std::make_shared<testing::ScriptedProvider>(std::vector{control_})});
    ASSERT_TRUE(pending.ok()) << pending.status();
    pending_ = *std::move(pending);
    control_->WaitForHeldFetches(1);
    const std::vector<ReplicaInfo> replicas = engine_->ListReplicas();
    ASSERT_EQ(replicas.size(), 1u);
    ASSERT_EQ(replicas.front().state, ReplicaState::kFilling);
    replica_id_ = replicas.front().id;
  }

  const std::shared_ptr<testing::SourceControl> control_ =
      testing::MakeControl(artifact_.image, {.held = true});
  uint64_t used_before_ = 0;  // of the pool
  std::unique_ptr<PendingReplica> pending_;
  std::string replica_id_;
};

TEST_F(FillingTest, PullOfFillingReplica_ContinuesWhenReplicaIsReady) {
  auto opened = registry_->Open(Opening(replica_id_));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(Pull(opened->pull_descriptor()).status()))
      << "nothing of it is there";
  control_->Release();
  ASSERT_TRUE(pending_->Wait(RequestContext::Background(absl::Seconds(20))).ok());
  auto bytes = Pull(opened->pull_descriptor());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, artifact_.image);
  EXPECT_EQ(registry_->active(), 1);
}

TEST_F(FillingTest, PullOfFillingReplica_EndsWhenIngestIsCancelled) {
  ASSERT_TRUE(registry_->Open(Opening(replica_id_)).ok());
  pending_.reset();  // no other call wants it: the ingest is cancelled
  EXPECT_TRUE(testing::Eventually([this] {
    const std::vector<v1::ServeReport> reports = registry_->Reports();
    return reports.size() == 1 && absl::IsCancelled(rpc::FromProto(reports.front().error()));
  }));
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_TRUE(testing::Eventually([this] { return pool_->stats().used_bytes == used_before_; }));
}

TEST_F(ServeRegistryTest, OpenPull_RefusesOtherReceiverAndSource) {
  const std::string replica = MakeReplica({LocationKind::kCpu});
  const v1::OpenPullRequest opening = Opening(replica);
  EXPECT_EQ(registry_->Open(opening, /*caller=*/"c").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry_->Open(Opening(replica, "loopback", "another")).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Leases(), 0);
  EXPECT_TRUE(registry_->Open(opening, /*caller=*/"b").ok());
  EXPECT_EQ(lane_->served_to, "b");
}

TEST_F(ServeRegistryTest, OpenPullWithoutPeerName_ServesReceiverOfTheGrant) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  EXPECT_EQ(lane_->served_to, "b");
}

TEST_F(ServeRegistryTest, PullOfDeviceReplica_GoesThroughStagingBuffer) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kGpu, 0})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  auto bytes = Pull(descriptor->pull_descriptor());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, artifact_.image);
  EXPECT_FALSE(registry_->Reports()[0].in_place());
  EXPECT_GT(rpc::FromProto(registry_->Reports()[0].reading()), absl::ZeroDuration());
}

TEST_F(ServeRegistryTest, ServeReport_ListsOpenAndClosedPulls) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  ASSERT_EQ(registry_->Reports().size(), 1);
  EXPECT_EQ(registry_->Reports()[0].requests(), 0);
  ASSERT_TRUE(Pull(descriptor->pull_descriptor()).ok());
  // The receiver can have the last piece before this end counts it.
  ASSERT_TRUE(testing::Eventually([&] { return registry_->Reports()[0].bytes() == artifact_.image.size(); }));
  const v1::ServeReport open = registry_->Reports()[0];
  EXPECT_EQ(open.grant_id(), "transport");
  EXPECT_EQ(open.receiver_node_id(), "receiver");
  EXPECT_EQ(open.lane(), "loopback");
  EXPECT_GT(open.requests(), 0);
  EXPECT_TRUE(open.in_place());
  EXPECT_LE(rpc::FromProto(open.opened()), rpc::FromProto(open.first_request()));
  EXPECT_LE(rpc::FromProto(open.first_request()), rpc::FromProto(open.last_completion()));
  EXPECT_FALSE(open.has_closed());
  EXPECT_EQ(registry_->bytes(), (BytesByLane{{"loopback", artifact_.image.size()}}));

  registry_->Close("transport", "b", absl::OkStatus()).IgnoreError();
  ASSERT_EQ(registry_->Reports().size(), 1);
  EXPECT_GE(rpc::FromProto(registry_->Reports()[0].closed()), rpc::FromProto(open.last_completion()));
  EXPECT_EQ(registry_->Reports()[0].bytes(), artifact_.image.size());
  EXPECT_EQ(registry_->bytes(), (BytesByLane{{"loopback", artifact_.image.size()}})) << "counted once";
}

TEST_F(ServeRegistryTest, PullThatEndsNow_IsReportedAndCounted) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  ASSERT_TRUE(Pull(descriptor->pull_descriptor()).ok());
  ASSERT_TRUE(testing::Eventually([&] { return registry_->Reports()[0].bytes() == artifact_.image.size(); }));
  std::vector<v1::ServeReport> meanwhile;
  on_end_ = [&] {
    meanwhile = registry_->Reports();
    EXPECT_EQ(registry_->bytes(), (BytesByLane{{"loopback", artifact_.image.size()}}));
  };
  registry_->Close("transport", "b", absl::OkStatus()).IgnoreError();
  ASSERT_EQ(meanwhile.size(), 1);
  EXPECT_EQ(meanwhile[0].grant_id(), "transport");
  EXPECT_EQ(meanwhile[0].bytes(), artifact_.image.size());
}

// The receiver can have the last piece before this end counts it: a close waits for the count.
TEST_F(ServeRegistryTest, Close_ReturnsAllBytesThatReceiverHas) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  ASSERT_TRUE(Pull(descriptor->pull_descriptor()).ok());
  EXPECT_EQ(registry_->Close("transport", "b", absl::OkStatus()).value(), artifact_.image.size());
  EXPECT_EQ(registry_->Reports()[0].bytes(), artifact_.image.size());
}

TEST_F(ServeRegistryTest, RepeatedOpen_ReturnsSamePullUntilClosed) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  auto first = registry_->Open(opening);
  auto second = registry_->Open(opening);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->pull_descriptor(), second->pull_descriptor());
  EXPECT_EQ(registry_->active(), 1);
  registry_->Close("transport", "b", absl::OkStatus()).IgnoreError();
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, PullRevokedBeforeOpen_IsRefused) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  registry_->Revoke({"transport"});
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, RevocationDuringOpen_EndsThePull) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  on_serve_ = [this] { registry_->Revoke({"transport"}); };
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
}

TEST_F(ServeRegistryTest, RepeatedOpenDuringOpen_ReturnsSamePull) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  absl::StatusOr<v1::OpenPullResponse> overtaking = absl::UnknownError("not called");
  on_serve_ = [&] { overtaking = registry_->Open(opening); };
  auto descriptor = registry_->Open(opening);
  ASSERT_TRUE(descriptor.ok() && overtaking.ok());
  EXPECT_EQ(descriptor->pull_descriptor(), overtaking->pull_descriptor());
  EXPECT_TRUE(Pull(descriptor->pull_descriptor()).ok());
}

TEST_F(ServeRegistryTest, CheckGrant_RefusesRevokedGrant) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  EXPECT_TRUE(registry_->CheckGrant(opening).ok());
  registry_->Revoke({"transport"});
  EXPECT_EQ(registry_->CheckGrant(opening).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, PullClosedWithSuccess_ReportsNoError) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  registry_->Close("transport", "b", absl::OkStatus())
      .IgnoreError();  // after a part of the image, or nothing of it
  EXPECT_FALSE(registry_->Reports()[0].has_error());
}

TEST_F(ServeRegistryTest, PullClosedWithError_ReportsReceiverError) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  registry_->Close("transport", "b", absl::UnavailableError("no byte arrived")).IgnoreError();
  EXPECT_EQ(rpc::FromProto(registry_->Reports()[0].error()), absl::UnavailableError("no byte arrived"));
}

TEST_F(ServeRegistryTest, Close_RefusesCallerThatIsNotTheReceiver) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  EXPECT_EQ(registry_->Close("transport", "c", absl::OkStatus()).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(registry_->active(), 1);
  EXPECT_TRUE(registry_->Close("transport", "b", absl::OkStatus()).ok());
  EXPECT_EQ(registry_->active(), 0);
}

TEST_F(ServeRegistryTest, Revocation_EndsPullAndItsLease) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok());
  registry_->Revoke({"transport", "another"});
  EXPECT_EQ(Leases(), 0);
  EXPECT_FALSE(Pull(descriptor->pull_descriptor()).ok());
}

TEST_F(ServeRegistryTest, AwaitNone_EndsAfterLastPullOrAtDeadline) {
  EXPECT_TRUE(registry_->AwaitNone(SteadyTime::InfinitePast()));
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  EXPECT_FALSE(registry_->AwaitNone(SteadyTime::InfinitePast()));
  EXPECT_FALSE(registry_->AwaitNone(SteadyNow() + absl::Milliseconds(5)));
  std::thread closer([&] { registry_->Close("transport", "b", absl::OkStatus()).IgnoreError(); });
  EXPECT_TRUE(registry_->AwaitNone(SteadyTime::InfiniteFuture()));
  closer.join();
}

TEST_F(ServeRegistryTest, ExpiredPull_EndsUnlessRenewedOrMoving) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok());
  now_ += absl::Seconds(29);
  registry_->Renew();
  now_ += absl::Seconds(29);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1);
  now_ += absl::Seconds(2);
  ASSERT_TRUE(Pull(descriptor->pull_descriptor()).ok());
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1) << "bytes moved since the last sweep";
  now_ += absl::Seconds(29);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1) << "on a slow link the next ones may take a while";
  now_ += absl::Seconds(2);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
}

TEST_F(ServeRegistryTest, GrantToken_OpensOnlyWhatItNames) {
  const std::string replica_id = MakeReplica({LocationKind::kCpu});
  v1::OpenPullRequest other_transport = Opening(replica_id);
  other_transport.set_grant_id("another");
  v1::OpenPullRequest other_replica = Opening(replica_id);
  other_replica.set_replica_id(MakeReplica({LocationKind::kGpu, 0}));
  v1::OpenPullRequest other_receiver = Opening(replica_id);
  other_receiver.set_receiver_node_id("another");
  v1::OpenPullRequest other_lane = Opening(replica_id, "ucx");
  v1::OpenPullRequest forged = Opening(replica_id);
  forged.mutable_grant_token()->back() ^= 1;
  for (const v1::OpenPullRequest& opening :
       {other_transport, other_replica, other_receiver, other_lane, forged}) {
    EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(registry_->active(), 0);
}

TEST_F(ServeRegistryTest, ExpiredGrantToken_IsRefused) {
  const v1::OpenPullRequest opening = Opening(MakeReplica({LocationKind::kCpu}));
  now_ += absl::Minutes(10);
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ServeRegistryTest, LocalGrant_PermitsPullButPullGrantDoesNotAttach) {
  const std::string replica_id = MakeReplica({LocationKind::kCpu});
  EXPECT_TRUE(registry_->Open(Opening(replica_id, "local")).ok());
  v1::OpenPullRequest attach = Opening(replica_id, "loopback");
  attach.set_lane("local");
  EXPECT_EQ(registry_->CheckGrant(attach).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ServeRegistryTest, UnknownReplicaOrLane_IsRefused) {
  EXPECT_EQ(registry_->Open(Opening("no-such-replica")).status().code(), absl::StatusCode::kNotFound);
  v1::OpenPullRequest unknown = Opening(MakeReplica({LocationKind::kCpu}), "local");
  unknown.set_lane("warp");
  EXPECT_EQ(registry_->Open(unknown).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Leases(), 0);
}

TEST(StagingBuffers, StagingBuffers_AreLimitedAndReturnedWhenReleased) {
  auto pool = HostPool::Create({.bytes = 8 << 20, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  auto buffers = StagingBuffers::Create(pool->get(), 1);
  ASSERT_TRUE(buffers.ok());
  auto first = (*buffers)->Acquire(absl::InfiniteDuration());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*buffers)->Acquire(absl::ZeroDuration()).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::thread giver([held = *std::move(first)]() mutable { held.reset(); });
  EXPECT_TRUE((*buffers)->Acquire(absl::InfiniteDuration()).ok());
  giver.join();
  EXPECT_EQ(StagingBuffers::Create(pool->get(), 100).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tensorcast::daemon::serve_registry_test
