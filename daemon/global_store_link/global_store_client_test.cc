// What a node concludes about the global store from the results of its calls, over real sockets.
#include "daemon/global_store_link/global_store_client.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/channel.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/retry.h"
#include "rpc/server.h"

namespace tensorcast::daemon::global_store_client_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Long enough to be answered in.
constexpr absl::Duration kLong = absl::Milliseconds(400);

// A global store that works on a call until no caller waits for it any more, but for what a test sets.
class BusyStore final : public v1::GlobalStore::CallbackService {
 public:
  explicit BusyStore(rpc::Executor* executor) : executor_(*executor) {}

  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call,
                                       const v1::ResolveKeyRequest* request,
                                       v1::ResolveKeyResponse* response) override {
    return rpc::HandleUnary(call, executor_, [this, request, response](const RequestContext& context) {
      response->mutable_key()->set_name(request->key());
      if (request->key() == "known") return absl::OkStatus();
      if (on_busy) on_busy();
      return Work(context);
    });
  }
  grpc::ServerUnaryReactor* RequestReplicaTransport(grpc::CallbackServerContext* call,
                                                    const v1::RequestReplicaTransportRequest*,
                                                    v1::RequestReplicaTransportResponse*) override {
    return rpc::HandleUnary(call, executor_, [](const RequestContext& context) { return Work(context); });
  }

  // Both answer at once, and keep what they were told.
  grpc::ServerReadReactor<v1::PublishArtifactRequest>* PublishArtifact(
      grpc::CallbackServerContext* call, v1::PublishArtifactResponse* response) override {
    return rpc::HandleReadStream<v1::PublishArtifactRequest>(
        call, executor_,
        [this](v1::PublishArtifactRequest&& message) {
          published.push_back(std::move(message));
          return absl::OkStatus();
        },
        [response](const RequestContext&) {
          response->set_artifact_id("tc2:a");
          return absl::OkStatus();
        });
  }
  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) override {
    return rpc::HandleWriteStream<v1::DescribeArtifactResponse>(
        call, executor_,
        [this, request](const RequestContext&, rpc::StreamWriter<v1::DescribeArtifactResponse>& writer) {
          described = *request;
          v1::DescribeArtifactResponse first;
          for (const std::string& held : request->held_artifacts()) {
            first.add_differences()->set_base_id(held);
          }
          if (request->held_artifacts_size() > 0) first.add_difference_manifests("of the first");
          if (request->manifest()) first.set_manifest_piece("of the target");
          return writer.Write(std::move(first));
        });
  }

  std::vector<v1::PublishArtifactRequest> published;
  v1::DescribeArtifactRequest described;
  std::function<void()> on_busy;  // set before the first call

 private:
  static absl::Status Work(const RequestContext& context) {
    absl::Notification given_up;
    const auto registration = context.cancellation.OnCancel([&] { given_up.Notify(); });
    given_up.WaitForNotification();
    return context.Check("working");
  }

  rpc::Executor& executor_;
};

class GlobalStoreClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&service_}});
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    address_ = server_->addresses().front();
    client_ = MakeGlobalStoreClient(std::make_shared<GlobalStoreChannel>(address_));
  }

  absl::Status Resolve(const std::string& key, absl::Duration time) {
    return client_->ResolveKey(RequestContext::Background(time), key, nullptr).status();
  }

  static RequestContext Context() { return RequestContext::Background(absl::Seconds(60)); }

  rpc::Executor executor_;
  BusyStore service_{&executor_};
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
  std::unique_ptr<GlobalStoreClient> client_;
};

TEST_F(GlobalStoreClientTest, SlowWaitingCall_DoesNotCountAsAbsence) {
  const absl::Status late = client_->RequestReplicaTransport(RequestContext::Background(kLong), {}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(client_->away_for(), absl::ZeroDuration());
}

TEST_F(GlobalStoreClientTest, SilentGlobalStore_IsUnavailableWithItsAddress) {
  const absl::Status silent = Resolve("unknown", kLong);
  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_THAT(silent.message(), AllOf(HasSubstr("the global store at " + address_ + " does not answer"),
                                      HasSubstr("; start the global store")));
  EXPECT_GE(client_->away_for(), kLong);
  EXPECT_TRUE(Resolve("known", absl::Seconds(60)).ok());
  EXPECT_EQ(client_->away_for(), absl::ZeroDuration());
}

TEST_F(GlobalStoreClientTest, Absence_BeginsAfterTheLastAnswer) {
  ASSERT_TRUE(Resolve("known", absl::Seconds(60)).ok());  // connected
  absl::Notification began;
  service_.on_busy = [&] { began.Notify(); };
  std::thread busy([&] { EXPECT_TRUE(absl::IsUnavailable(Resolve("unknown", absl::Seconds(2)))); });
  began.WaitForNotificationWithTimeout(absl::Seconds(10));
  const SteadyTime before_the_answer = SteadyNow();
  EXPECT_TRUE(Resolve("known", absl::Seconds(60)).ok());
  busy.join();
  EXPECT_LE(client_->away_for(), SteadyNow() - before_the_answer);
}

TEST_F(GlobalStoreClientTest, WatchAtItsDeadline_CountsAsAnswered) {
  const absl::Status ended = absl::DeadlineExceededError("Deadline Exceeded");
  EXPECT_EQ(client_->Noted(ended, SteadyNow() - absl::Minutes(1), Timeout::kMeansNothing), ended);
  EXPECT_EQ(client_->away_for(), absl::ZeroDuration());
}

TEST_F(GlobalStoreClientTest, LongAbsence_IsNotWorthRetrying) {
  const absl::Status ended = absl::DeadlineExceededError("Deadline Exceeded");
  const absl::Status silent = client_->Noted(ended, SteadyNow() - kShortAbsence, Timeout::kMeansSilence);
  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_FALSE(rpc::IsWorthRetrying(silent));
}

std::shared_ptr<const Manifest> SomeManifest(const std::map<std::string, std::string>& metadata,
                                             ArtifactKind kind = ArtifactKind::kTensors) {
  ImageLayout layout;
  for (const char* const name : {"index", "records"}) {
    layout.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), metadata, kind);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

TEST_F(GlobalStoreClientTest, Publish_SendsDifferenceBehindItsTarget) {
  const auto base = SomeManifest({});
  // Of several pieces.
  const auto target = SomeManifest({{"text", std::string(3 * rpc::kPieceBytes, 'x')}});
  const auto difference =
      SomeManifest({{"base", base->id()}, {"target", target->id()}}, ArtifactKind::kDifference);
  v1::PublishArtifactRequest first;
  first.set_key("k");
  first.mutable_difference_replica()->set_replica_id("r");
  ASSERT_TRUE(client_->PublishWithDifference(Context(), *target, *difference, first, "").ok());
  std::string target_bytes;
  std::string difference_bytes;
  for (const v1::PublishArtifactRequest& message : service_.published) {
    EXPECT_TRUE(message.manifest_piece().empty() || difference_bytes.empty()) << "the target comes first";
    target_bytes += message.manifest_piece();
    difference_bytes += message.difference_piece();
  }
  EXPECT_TRUE(target_bytes == target->bytes());
  EXPECT_TRUE(difference_bytes == difference->bytes());
  EXPECT_EQ(service_.published.front().key(), "k");
  EXPECT_EQ(service_.published.front().difference_replica().replica_id(), "r");
  service_.published.clear();
  ASSERT_TRUE(client_->PublishArtifact(Context(), *base, first, "").ok());
  ASSERT_EQ(service_.published.size(), 1u);
  EXPECT_EQ(service_.published.front().manifest_piece(), base->bytes());
}

TEST_F(GlobalStoreClientTest, FindDifferences_AsksFromWhatIsHeld) {
  const auto found = client_->FindDifferences(Context(), "tc2:a", {"tc2:b", "tc2:c"}, /*manifest=*/nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(service_.described.artifact_id(), "tc2:a");
  EXPECT_FALSE(service_.described.manifest());
  ASSERT_EQ(found->path.size(), 2u);
  EXPECT_EQ(found->path[1].base_id(), "tc2:c");
  EXPECT_EQ(found->manifests, std::vector<std::string>{"of the first"});
  std::string manifest;
  ASSERT_TRUE(client_->FindDifferences(Context(), "tc2:a", {"tc2:b"}, &manifest).ok());
  EXPECT_EQ(manifest, "of the target");
}

// As when the global stores were started anew on other hosts, or were not known yet.
TEST_F(GlobalStoreClientTest, LongAbsentGlobalStore_IsLookedUpAgain) {
  std::atomic<bool> moved = false;
  const auto look_up = [&](const std::string& names) -> std::string {
    EXPECT_EQ(names, "store:7000");
    return moved.load() ? address_ : "127.0.0.1:1";
  };
  const auto client = MakeGlobalStoreClient(
      std::make_shared<GlobalStoreChannel>("store:7000", rpc::ChannelOptions(), look_up));
  EXPECT_TRUE(absl::IsUnavailable(client->Heartbeat(Context(), {}).status()));
  moved = true;
  // This one has no heartbeats, but it answers.
  EXPECT_TRUE(
      testing::Eventually([&] { return absl::IsUnimplemented(client->Heartbeat(Context(), {}).status()); }));
  moved = false;
  EXPECT_TRUE(absl::IsUnimplemented(client->Heartbeat(Context(), {}).status()))
      << "the client does not look again while it answers";
}

}  // namespace
}  // namespace tensorcast::daemon::global_store_client_test
