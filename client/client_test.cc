#include "tensorcast/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "client/admin.h"
#include "client/daemon_address.h"
#include "client/put_image.h"
#include "client/testing/client_fixture.h"
#include "core/safetensors/safetensors.h"

namespace tensorcast::client::client_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ClientTest, PutArtifact_IsReturnedByKeyAndId) {
  std::vector<uint64_t> progress;
  auto put = PutTwo(
      {.key = "m/prod", .on_progress = [&](const TransferProgress& p) { progress.push_back(p.bytes_done); }});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->key_revision, 1u);
  EXPECT_EQ(put->transfer->bytes, 7u);
  EXPECT_THAT(progress, ElementsAre(1));

  for (const std::string& name : {std::string("m/prod"), put->artifact_id}) {
    auto replica = client_->Get(Context(), name, {});
    ASSERT_TRUE(replica.ok()) << replica.status();
    EXPECT_EQ((*replica)->artifact_id(), put->artifact_id);
    EXPECT_EQ((*replica)->key_revision(), name == "m/prod" ? 1u : 0u);
    EXPECT_EQ(Text((*replica)->Find("a")->host), "hello");
    EXPECT_EQ(Text((*replica)->Find("b")->host), "12345678");
    EXPECT_EQ((*replica)->metadata().at("format"), "pt");
    EXPECT_TRUE(absl::IsNotFound((*replica)->Find("c").status()));
    EXPECT_FALSE((*replica)->lost());
  }
}

TEST_F(ClientTest, PutOptions_ReachTheDaemon) {
  ASSERT_TRUE(
      PutTwo({.key = "k", .expected_revision = 0, .durable = true, .wait_for_space = true, .pin = true})
          .ok());
  EXPECT_TRUE(daemon_->last_put.pin());
  EXPECT_TRUE(daemon_->last_put.durable());
  EXPECT_TRUE(daemon_->last_put.wait_for_space());
  EXPECT_TRUE(daemon_->last_put.binding().has_expected_revision());
  EXPECT_EQ(daemon_->last_put.tensors_size(), 2);
}

TEST_F(ClientTest, PutOfThousandsOfTensors_UsesSeveralMessages) {
  std::vector<PutTensor> tensors;
  for (int i = 0; i < 2500; ++i) tensors.push_back({absl::StrCat("t", i), DType::kU8, {1}, Bytes("x")});
  auto put = client_->Put(Context(), tensors, {}, {});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(daemon_->last_put.tensors_size(), 2500);
}

TEST_F(ClientTest, BytesThatDoNotFitShape_AreRefusedByClient) {
  const PutTensor wrong[] = {{"a", DType::kF32, {2}, Bytes("1234567")}};
  auto put = client_->Put(Context(), wrong, {}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(put.status())) << put.status();
  const PutTensor twice[] = {{"a", DType::kU8, {1}, Bytes("1")}, {"a", DType::kU8, {1}, Bytes("2")}};
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Put(Context(), twice, {}, {}).status()));
}

TEST_F(ClientTest, DaemonOnOtherHost_CanBeManagedButNotAttached) {
  auto put = PutTwo({.key = "k"});
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->hide_handle_socket = true;
  auto remote = Client::Connect({.daemon = daemon_->address()});
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_TRUE((*remote)->ListKeys(Context(), "").ok());
  auto attached = (*remote)->Get(Context(), "k", {});
  EXPECT_TRUE(absl::IsFailedPrecondition(attached.status())) << attached.status();
  EXPECT_THAT(attached.status().message(), HasSubstr("/elsewhere/handles.sock"));
  auto made = (*remote)->Get(Context(), "k", {.attach = false});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE((*made)->image().empty());
  EXPECT_EQ((*made)->Find("a")->nbytes, 5u);
}

TEST_F(ClientTest, UnavailableError_IsRetriedAndOthersAreNot) {
  auto put = PutTwo({.key = "k"});
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->unavailable_materializes = 2;
  EXPECT_TRUE(client_->Get(Context(), "k", {}).ok());
  auto missing = client_->Get(Context(), "no-such-key", {});
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_THAT(missing.status().message(), HasSubstr("get no-such-key"));
}

TEST_F(ClientTest, Error_NamesItsOperationOnce) {
  RequestContext late = Context();
  late.deadline = SteadyNow();
  const PutTensor tensors[] = {{"a", DType::kU8, {1}, Bytes("1")}};
  for (const auto& [status, what] : {std::pair(client_->Get(late, "k", {}).status(), "get k: "),
                                     std::pair(client_->Import(late, "/m", {}).status(), "import /m: ")}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_TRUE(status.message().starts_with(what)) << status;
    EXPECT_EQ(status.message().find(what, 1), std::string_view::npos) << status;
  }
  daemon_->unavailable_puts = 1000;
  late.deadline = SteadyNow() + absl::Milliseconds(100);
  const absl::Status put = client_->Put(late, tensors, {}, {}).status();
  EXPECT_TRUE(put.message().starts_with("put: ")) << put;
  EXPECT_EQ(put.message().find("put: ", 1), std::string_view::npos) << put;
}

TEST_F(ClientTest, ManifestOfOtherArtifact_IsDataLoss) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->corrupt_manifest = true;
  auto replica = client_->Get(Context(), put->artifact_id, {});
  EXPECT_TRUE(absl::IsDataLoss(replica.status())) << replica.status();
}

TEST_F(ClientTest, ManyGets_ReceiveManifestOnce) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client_->Get(Context(), put->artifact_id, {}).ok());
  EXPECT_EQ(daemon_->manifests_sent, 1);
}

TEST_F(ClientTest, RetriedPut_OffersItsMemoryAgain) {
  daemon_->unavailable_puts = 2;  // each has taken its offer
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ(Text((*replica)->Find("b")->host), "12345678");
}

TEST_F(ClientTest, PendingGet_CanTimeOutContinueAndBeCancelled) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->hang_materialize = true;
  auto pending = client_->StartGet(Context(), put->artifact_id, {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(pending->Wait(SteadyNow() + absl::Milliseconds(10)).status()));
  daemon_->hang_materialize = false;
  auto replica = pending->Wait(SteadyTime::InfiniteFuture());
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(pending->Wait(SteadyTime::InfiniteFuture()).status()));

  daemon_->hang_materialize = true;
  pending = client_->StartGet(Context(), put->artifact_id, {});
  pending->Cancel();
  EXPECT_TRUE(absl::IsCancelled(pending->Wait(SteadyTime::InfiniteFuture()).status()));
  pending = client_->StartGet(Context(), put->artifact_id, {});
  pending.reset();  // cancels, and does not hang
}

// While it exists no thread can be started: each would want a stack that no address space holds.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    EXPECT_EQ(pthread_getattr_default_np(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(ClientTest, GetWithoutThread_IsAnError) {
  std::unique_ptr<PendingGet> pending;
  {
    const NoMoreThreads none;
    pending = client_->StartGet(Context(), "key", {});
  }
  const absl::Status status = pending->Wait(SteadyTime::InfiniteFuture()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  pending.reset();
}

TEST_F(ClientTest, PutWithoutThread_IsAnError) {
  ASSERT_TRUE(PutTwo().ok());  // the fake daemon of this process has its threads now
  absl::Status put;
  {
    const NoMoreThreads none;
    put = PutTwo().status();
  }
  EXPECT_EQ(put.code(), absl::StatusCode::kResourceExhausted) << put;
  EXPECT_TRUE(PutTwo().ok());
}

TEST_F(ClientTest, PendingGet_OutlivesItsClient) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->hang_materialize = true;
  auto pending = client_->StartGet(Context(), put->artifact_id, {});
  client_.reset();
  daemon_->hang_materialize = false;
  auto replica = pending->Wait(SteadyTime::InfiniteFuture());
  ASSERT_TRUE(replica.ok()) << replica.status();
  pending.reset();
  EXPECT_EQ(Text((*replica)->Find("a")->host), "hello");
}

TEST_F(ClientTest, GetWithPin_AsksForThePinInTheSameCall) {
  const auto put = PutTwo({});
  ASSERT_TRUE(put.ok()) << put.status();
  ASSERT_TRUE(client_->Get(Context(), put->artifact_id, {.pin = true}).ok());
  EXPECT_TRUE(daemon_->last_materialize.pin());
  EXPECT_THAT(daemon_->pinned(), ::testing::IsEmpty()) << "there is no second call";
}

TEST_F(ClientTest, SetPinned_PinsAndUnpinsReplica) {
  EXPECT_EQ(client_->SetPinned(Context(), "replica-1", true), absl::OkStatus());
  EXPECT_THAT(daemon_->pinned(), ElementsAre("replica-1"));
  EXPECT_EQ(client_->SetPinned(Context(), "replica-1", false), absl::OkStatus());
  EXPECT_THAT(daemon_->pinned(), ::testing::IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(client_->SetPinned(Context(), "another", true)));
}

TEST_F(ClientTest, GetStatus_ReturnsNodePoolsAndGlobalStore) {
  auto status = client_->GetStatus(Context());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->node_id, "node-id");
  EXPECT_EQ(status->name, "node-name");
  EXPECT_FALSE(status->global_store_reachable);
  EXPECT_EQ(status->global_store_error, "it does not answer");
  ASSERT_EQ(status->pools.size(), 1u);
  EXPECT_EQ(status->pools[0].location.ToString(), "gpu:2");
  EXPECT_EQ(status->pools[0].capacity_bytes, 3000u);
  EXPECT_EQ(status->pools[0].used_bytes, 200u);
  EXPECT_EQ(status->pools[0].pinned_bytes, 100u);
}

TEST_F(ClientTest, CancelledContext_CancelsPendingGet) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->hang_materialize = true;
  const RequestContext context = Context();
  auto pending = client_->StartGet(context, put->artifact_id, {});
  context.cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(pending->Wait(SteadyTime::InfiniteFuture()).status()));
}

class ImportTest : public ClientTest {
 protected:
  // A model of one tensor of a byte.
  std::string WriteModel() {
    const std::string path = folder_.File("model.safetensors");
    ImageLayout layout{.tensors = {{.name = "a", .dtype = DType::kU8, .shape = {1}, .nbytes = 1}}};
    EXPECT_TRUE(AssignOffsets(layout).ok());
    const std::vector<std::byte> image(layout.image_bytes);
    EXPECT_TRUE(WriteSafetensors(path, layout, {}, image).ok());
    return path;
  }
};

TEST_F(ImportTest, RetriedImport_OffersFilesAgainUnderSameRequestId) {
  const std::string path = WriteModel();
  std::vector<v1::ImportArtifactRequest> requests;
  daemon_->on_import = [&](const v1::ImportArtifactRequest& request) {
    requests.push_back(request);
    const auto offer = daemon_->handles().TakeOffer(request.offer_token());
    EXPECT_TRUE(offer.ok()) << offer.status();
    EXPECT_EQ(offer.ok() ? offer->files.size() : 0, 1u);
    return requests.size() == 1 ? absl::UnavailableError("starting") : absl::OkStatus();
  };
  RequestContext anonymous;
  anonymous.deadline = SteadyNow() + absl::Seconds(60);
  const std::string relative = std::filesystem::relative(path).string();
  auto result = client_->Import(anonymous, relative, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->artifact_id, "tc2:imported");
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].path(), std::filesystem::absolute(relative).string());
  EXPECT_EQ(requests[0].shards_size(), 1);
  ASSERT_EQ(daemon_->request_ids.size(), 2u);
  EXPECT_NE(daemon_->request_ids[0], "");
  EXPECT_EQ(daemon_->request_ids[0], daemon_->request_ids[1]);
}

TEST_F(ImportTest, ImportWithoutHandleSocket_SendsPathToDaemon) {
  std::vector<v1::ImportArtifactRequest> requests;
  daemon_->on_import = [&](const v1::ImportArtifactRequest& request) {
    requests.push_back(request);
    return absl::OkStatus();
  };
  daemon_->hide_handle_socket = true;
  auto remote = Client::Connect({.daemon = daemon_->address()});
  ASSERT_TRUE(remote.ok()) << remote.status();
  ASSERT_TRUE((*remote)->Import(Context(), "/on/the/daemons/host", {}).ok());
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].path(), "/on/the/daemons/host");
  EXPECT_EQ(requests[0].offer_token(), "");
}

TEST_F(ImportTest, ImportOfMissingFile_FailsWithoutAskingDaemon) {
  daemon_->on_import = [&](const v1::ImportArtifactRequest&) {
    ADD_FAILURE() << "the daemon was asked";
    return absl::OkStatus();
  };
  const absl::Status status = client_->Import(Context(), folder_.File("none"), {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(ClientTest, SetPinned_TakesAKeyForTheReplicasOfItsArtifact) {
  auto put = PutTwo({.key = "prod"});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(client_->SetPinned(Context(), "prod", true), absl::OkStatus());
  EXPECT_THAT(daemon_->pinned(), ElementsAre("replica-1"));
  EXPECT_EQ(client_->SetPinned(Context(), put->artifact_id, false), absl::OkStatus());
  EXPECT_TRUE(daemon_->pinned().empty());
}

TEST_F(ClientTest, GetFiles_GetsTheArtifactThatTheKeyBinds) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->SetKey("prod", put->artifact_id, 3);
  EXPECT_TRUE(absl::IsNotFound(client_->GetFiles(Context(), "prod").status()));
  daemon_->SetKey("prod", put->artifact_id, 4, /*files_id=*/put->artifact_id);
  auto files = client_->GetFiles(Context(), "prod");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->artifact_id(), put->artifact_id);
  auto replica = client_->Get(Context(), "prod");
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ((*replica)->files_id(), put->artifact_id);
}

TEST_F(ClientTest, BindKey_TakesAKeyForTheArtifactThatItNames) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  daemon_->SetKey("prod", put->artifact_id, 3);
  auto bound = client_->BindKey(Context(), "canary", "prod");
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->artifact_id, put->artifact_id);
  EXPECT_TRUE(absl::IsNotFound(client_->BindKey(Context(), "canary", "none").status()));
}

TEST_F(ClientTest, ListKeys_ReadsAllPages) {
  for (const char* key : {"a", "b", "c"}) daemon_->SetKey(key, "tc2:x", 1);
  auto keys = client_->ListKeys(Context(), "");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 3u);
  EXPECT_EQ((*keys)[2].name, "c");
}

TEST_F(ClientTest, BindKeyWithStaleRevision_IsFailedPrecondition) {
  auto put = PutTwo();
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_TRUE(client_->BindKey(Context(), "k", put->artifact_id, 0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(client_->BindKey(Context(), "k", put->artifact_id, 5).status()));
}

TEST_F(ClientTest, BrokenWatch_ReportsEveryChangeOnce) {
  daemon_->SetKey("gone", "tc2:g", 1);
  daemon_->SetKey("kept", "tc2:k", 1);
  std::vector<std::string> told;
  absl::Notification first_two;
  absl::Status status;
  std::thread watch([&] {
    status = client_->WatchKeys(Context(), "", [&](const KeyInfo& key) {
      told.push_back(absl::StrCat(key.deleted ? "-" : "", key.name, "@", key.revision));
      if (told.size() == 2) first_two.Notify();
      return told.size() < 5;
    });
  });
  first_two.WaitForNotification();
  daemon_->RemoveKey("gone", /*tell_watchers=*/false);
  daemon_->BreakWatches();
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->watchers() > 0; }));
  daemon_->SetKey("kept", "tc2:k2", 2);
  daemon_->SetKey("new", "tc2:n", 1);
  watch.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(told, ::testing::UnorderedElementsAre("gone@1", "kept@1", "-gone@1", "kept@2", "new@1"));
}

TEST_F(ClientTest, BrokenWatch_ReportsKeysDeletedMeanwhile) {
  daemon_->SetKey("only", "tc2:o", 1);
  absl::Notification seen;
  std::vector<std::string> told;
  absl::Status status;
  std::thread watch([&] {
    status = client_->WatchKeys(Context(), "", [&](const KeyInfo& key) {
      told.push_back(absl::StrCat(key.deleted ? "-" : "", key.name));
      if (told.size() == 1) seen.Notify();
      return told.size() < 2;
    });
  });
  seen.WaitForNotification();
  daemon_->RemoveKey("only", /*tell_watchers=*/false);
  daemon_->BreakWatches();
  watch.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(told, ::testing::ElementsAre("only", "-only"));
}

TEST_F(ClientTest, CancelledContext_EndsWatch) {
  const RequestContext context = Context();
  std::thread canceller([&] {
    EXPECT_TRUE(tensorcast::testing::Eventually([&] { return daemon_->watchers() > 0; }));
    context.cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(client_->WatchKeys(context, "", [](const KeyInfo&) { return true; })));
  canceller.join();
}

TEST_F(ClientTest, AdminError_KeepsItsCode) {
  auto admin = AdminClient::Connect(daemon_->address());
  ASSERT_TRUE(admin.ok()) << admin.status();
  EXPECT_TRUE((*admin)->GetStatus(Context()).ok());
  EXPECT_TRUE(
      absl::IsUnimplemented((*admin)->DrainNode(Context(), "node", true)));  // the fake has no such call
}

// Each would take an hour if a daemon that is not there were waited for.
class ConnectTest : public ::testing::Test {
 protected:
  static absl::Status Connect(const std::string& address) {
    return Client::Connect({.daemon = address, .connect_timeout = absl::Hours(1)}).status();
  }
  static void ExpectNoDaemon(const std::string& address) {
    const absl::Status status = Connect(address);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(status.message(),
              absl::StrCat(
                  "connect to ", address,
                  ": no daemon listens there; start a daemon with \"tensorcast daemon\", or give the address "
                  "of a running daemon"));
  }

  const tensorcast::testing::TempFolder folder_;
};

TEST_F(ConnectTest, ConnectToMissingSocket_FailsAtOnceInOneSentence) {
  ExpectNoDaemon("unix:" + folder_.File("daemon.sock"));
  ExpectNoDaemon("unix:" + folder_.File("no/folder/daemon.sock"));
}

TEST_F(ConnectTest, ConnectToSocketOfEndedProcess_FailsAtOnce) {
  const std::string path = folder_.File("daemon.sock");
  {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = *UnixAddress(path);
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ExpectNoDaemon("unix:" + path);
  std::ofstream(folder_.File("file")) << "no socket";
  ExpectNoDaemon("unix:" + folder_.File("file"));
}

TEST_F(ConnectTest, ConnectToPortWithoutListener_FailsAtOnce) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  ExpectNoDaemon(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
}

TEST_F(ConnectTest, ConnectToSocketInFolderOfOtherUser_IsPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string path = folder_.File("daemon.sock");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0700), 0);
  // The bare system call: of this thread alone.
  ASSERT_EQ(syscall(SYS_setresuid, -1, 65534, -1), 0);
  const absl::Status status = Connect("unix:" + path);
  ASSERT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr(": user 65534 may not use this socket; run this program as the daemon's user"));
}

// A socket of this name in the folder, on which this process listens until its end.
class ListeningSocket {
 public:
  ListeningSocket(const tensorcast::testing::TempFolder& folder, const std::string& name)
      : path_(folder.File(name)), socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = *UnixAddress(path_);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_.get(), 1), 0);
  }
  // As a process leaves it that was killed.
  void StopListening() { socket_ = UniqueFd(); }
  const std::string& path() const { return path_; }
  std::string address() const { return "unix:" + path_; }

 private:
  const std::string path_;
  UniqueFd socket_;
};

absl::StatusOr<std::string> Find(const std::vector<std::string>& folders) { return FindDaemonIn(folders); }

TEST_F(ConnectTest, FindDaemon_GivesOwnUserTheOperatorsSocket) {
  const ListeningSocket operators(folder_, "daemon.sock");
  const ListeningSocket clients(folder_, "client.sock");
  EXPECT_EQ(Find({folder_.path()}).value_or(""), operators.address());
}

TEST_F(ConnectTest, FindDaemon_GivesOtherUsersTheClientsSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a socket to another user";
  const ListeningSocket operators(folder_, "daemon.sock");
  const ListeningSocket clients(folder_, "client.sock");
  ASSERT_EQ(chown(operators.path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(Find({folder_.path()}).value_or(""), clients.address());
}

TEST_F(ConnectTest, FindDaemon_PassesOverSocketsOfKilledDaemons) {
  const tensorcast::testing::TempFolder second;
  ListeningSocket killed(folder_, "daemon.sock");
  killed.StopListening();
  const ListeningSocket runs(second, "daemon.sock");
  EXPECT_EQ(Find({"/no/such/folder", folder_.path(), second.path()}).value_or(""), runs.address());
}

TEST_F(ConnectTest, FindDaemonWhereNoneListens_NamesThePlaces) {
  const absl::Status none = Find({"/no/such/folder", folder_.path()}).status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_EQ(none.message(),
            absl::StrCat("find the daemon of this host: no daemon listens at "
                         "/no/such/folder/client.sock or ",
                         folder_.File("client.sock"),
                         "; start a daemon with \"tensorcast daemon\", or name a running daemon "
                         "with TENSORCAST_DAEMON"));
}

TEST_F(ConnectTest, FindDaemonThatRefusesThisUser_IsPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const ListeningSocket clients(folder_, "client.sock");
  ASSERT_EQ(chmod(folder_.path().c_str(), 0700), 0);
  // The bare system call: of this thread alone.
  ASSERT_EQ(syscall(SYS_setresuid, -1, 65534, -1), 0);
  const absl::Status refused = Find({folder_.path(), "/no/such/folder"}).status();
  ASSERT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(clients.path()));
}

TEST_F(ConnectTest, ConnectToInvalidAddress_IsInvalidArgument) {
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Connect({.daemon = "daemon"}).status()));
}

// TENSORCAST_DAEMON for the life of one.
class DaemonVariable {
 public:
  explicit DaemonVariable(const std::string& value) { setenv(kDaemonVariable, value.c_str(), 1); }
  ~DaemonVariable() { unsetenv(kDaemonVariable); }
};

TEST_F(ClientTest, Connect_FindsDaemonByEnvironmentVariable) {
  const std::string path = daemon_->address().substr(std::string_view("unix:").size());
  for (const std::string& named : {path, "unix:" + path}) {
    const DaemonVariable variable(named);
    const absl::Status connected = Client::Connect({}).status();
    EXPECT_TRUE(connected.ok()) << connected;
    EXPECT_TRUE(AdminClient::Connect("").ok());
  }
  EXPECT_EQ((*Client::Connect({.daemon = path}))->daemon(), daemon_->address());
  const DaemonVariable nowhere("/nowhere/daemon.sock");
  EXPECT_THAT(Client::Connect({}).status().message(),
              HasSubstr("connect to unix:/nowhere/daemon.sock: no daemon listens there"));
  // The argument stands above it.
  EXPECT_TRUE(Client::Connect({.daemon = path}).ok());
}

TEST(DaemonAddress, PathOfSocket_BecomesAbsoluteUnixAddress) {
  const std::string here = std::filesystem::current_path();
  EXPECT_EQ(ToDaemonAddress("/run/a.sock"), "unix:/run/a.sock");
  EXPECT_EQ(ToDaemonAddress("./a.sock"), "unix:" + here + "/a.sock");
  EXPECT_EQ(ToDaemonAddress("~/a.sock"), absl::StrCat("unix:", std::getenv("HOME"), "/a.sock"));
  EXPECT_EQ(ToDaemonAddress("unix:/run/a.sock"), "unix:/run/a.sock");
  EXPECT_EQ(ToDaemonAddress("node-a:7001"), "node-a:7001");
}

TEST_F(ClientTest, Connect_WaitsForADaemonWhenAskedTo) {
  daemon_->StopServing();
  auto waits = std::async(std::launch::async, [&] {
    return Client::Connect({.daemon = daemon_->address(), .wait_for_daemon = absl::Seconds(60)}).status();
  });
  EXPECT_TRUE(absl::IsUnavailable(Client::Connect({.daemon = daemon_->address()}).status()));
  daemon_->Serve();
  const absl::Status connected = waits.get();
  EXPECT_TRUE(connected.ok()) << connected;
}

TEST_F(ClientTest, CancelledPut_Ends) {
  const RequestContext context = Context();
  context.cancellation.Cancel();
  const PutTensor tensors[] = {{"a", DType::kU8, {5}, Bytes("hello")}};
  const absl::Status put = client_->Put(context, tensors).status();
  EXPECT_TRUE(absl::IsCancelled(put)) << put;
}

TEST_F(ClientTest, LargeTensors_ArriveWholeThroughPutRing) {
  std::vector<std::byte> large((uint64_t{11} << 20) + 3);
  for (size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<std::byte>(i * 31 / 997);
  const PutTensor tensors[] = {{"small", DType::kU8, {5}, Bytes("hello")},
                               {"large", DType::kU8, {large.size()}, large}};
  auto put = client_->Put(Context(), tensors);
  ASSERT_TRUE(put.ok()) << put.status();
  auto replica = client_->Get(Context(), put->artifact_id, {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(std::ranges::equal((*replica)->Find("large")->host, large));
}

TEST(PutImage, PutImage_CanBeWrittenInPiecesOfAnySize) {
  const std::string a(300, 'a'), b(1, 'b'), d(511, 'd');
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  const PutTensor tensors[] = {{"a", DType::kU8, {300}, bytes(a)},
                               {"b", DType::kU8, {1}, bytes(b)},
                               {"empty", DType::kU8, {0}, {}},
                               {"d", DType::kU8, {511}, bytes(d)},
                               {"last", DType::kU8, {0}, {}}};
  const auto image = PutImage::Create(tensors, nullptr, 1);
  ASSERT_TRUE(image.ok()) << image.status();
  std::string whole(image->layout().image_bytes, '\0');
  for (size_t i = 0; i < 5; ++i) {
    const Tensor& tensor = image->layout().tensors[i];
    std::ranges::copy(std::as_bytes(std::span(tensors[i].bytes)),
                      std::as_writable_bytes(std::span(whole)).begin() + tensor.offset);
  }
  for (size_t size : {size_t{1}, size_t{7}, size_t{255}, size_t{256}, size_t{600}, whole.size()}) {
    std::string back(whole.size(), '?');
    for (size_t at = 0; at < whole.size(); at += size) {
      const auto to = std::as_writable_bytes(std::span(back)).subspan(at, std::min(size, whole.size() - at));
      ASSERT_TRUE(image->Write(0, at, to).ok());
    }
    EXPECT_EQ(back, whole) << "in pieces of " << size;
  }
}

}  // namespace
}  // namespace tensorcast::client::client_test
