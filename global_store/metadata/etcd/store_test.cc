// The metadata store on a real etcd: the contract, and the behaviour of several stores and their leaders.
#include "global_store/metadata/etcd/store.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "etcd/rpc.grpc.pb.h"
#include "global_store/metadata/copy.h"
#include "global_store/metadata/etcd/counter.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "global_store/metadata/testing/metadata_store_contract.h"

namespace tensorcast::global_store::etcd {
namespace {

using tensorcast::testing::Eventually;
using ::testing::HasSubstr;

namespace pb = etcdserverpb;

constexpr char kPrefix[] = "tensorcast";

// One that leads, in the order of construction.
struct Member {
  std::shared_ptr<EtcdCluster> cluster;
  std::unique_ptr<Client> client;
  std::unique_ptr<Leadership> leadership;
  std::unique_ptr<MetadataStore> store;
};

// The lease is long where none is to end, however busy the machine is.
std::shared_ptr<Member> Lead(std::shared_ptr<EtcdCluster> cluster, const std::string& name = "a",
                             absl::Duration ttl = absl::Minutes(1), ClientOptions login = {}) {
  auto member = std::make_shared<Member>();
  login.endpoints = cluster->endpoints();
  auto client = Client::Create(login);
  EXPECT_TRUE(client.ok()) << client.status();
  member->cluster = std::move(cluster);
  member->client = *std::move(client);
  auto leadership = Leadership::Campaign(
      member->client.get(), {.prefix = kPrefix, .ttl = ttl, .name = name, .address = name + ":1"},
      RequestContext::Background(absl::Minutes(1)), [](const StoreAddress&) {});
  EXPECT_TRUE(leadership.ok()) << leadership.status();
  if (!leadership.ok()) return nullptr;
  member->leadership = *std::move(leadership);
  member->store = MakeStore(member->client.get(), member->leadership.get(), kPrefix);
  return member;
}

std::shared_ptr<EtcdCluster> StartEtcd(const std::filesystem::path& folder, int members = 1,
                                       std::vector<std::string> flags = {}) {
  auto cluster = EtcdCluster::Start(folder / "etcd", members, std::move(flags));
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

std::shared_ptr<MetadataStore> OpenOnEtcd(const std::filesystem::path& folder) {
  std::shared_ptr<EtcdCluster> cluster = StartEtcd(folder);
  const std::shared_ptr<Member> member = cluster == nullptr ? nullptr : Lead(std::move(cluster));
  return member == nullptr ? nullptr : std::shared_ptr<MetadataStore>(member, member->store.get());
}

WriteBatch Bind(const std::string& name, uint64_t revision) {
  return {.facts = {.keys = {{.name = name, .artifact_id = "a", .revision = revision}}}};
}

class EtcdStore : public ::testing::Test {
 protected:
  void Start(int members, std::vector<std::string> flags = {}) {
    cluster_ = StartEtcd(folder_.path(), members, std::move(flags));
    ASSERT_NE(cluster_, nullptr);
  }
  static uint64_t RevisionOf(MetadataStore& store, const std::string& name) {
    const auto facts = store.Load();
    EXPECT_TRUE(facts.ok()) << facts.status();
    for (const KeyRecord& key : facts.ok() ? facts->keys : std::vector<KeyRecord>{}) {
      if (key.name == name) return key.revision;
    }
    return 0;
  }

  tensorcast::testing::TempFolder folder_;
  std::shared_ptr<EtcdCluster> cluster_;
};

TEST_F(EtcdStore, LargeCommit_IsAtomicOrRefusedWhole) {
  Start(1);
  const auto leader = Lead(cluster_);
  WriteBatch many;
  for (int i = 0; i < 4000; ++i) many.facts.keys.push_back({.name = absl::StrCat("k", i), .revision = 1});
  ASSERT_TRUE(leader->store->Commit(many).ok());
  EXPECT_EQ(leader->store->Load()->keys.size(), 4000u);
  for (int i = 0; i < 1000; ++i) many.facts.keys.push_back({.name = absl::StrCat("more", i), .revision = 1});
  const absl::Status refused = leader->store->Commit(many);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(leader->store->Load()->keys.size(), 4000u);
  EXPECT_TRUE(leader->leadership->Check().ok()) << "a change that is too large is its caller's trouble";
}

TEST_F(EtcdStore, EtcdStore_CommitsWhileOneMemberIsDown) {
  Start(3);
  const auto leader = Lead(cluster_);
  uint64_t revision = 0;
  for (int member = 0; member < 3; ++member) {
    cluster_->Signal(member, SIGSTOP);
    const absl::Status stopped = leader->store->Commit(Bind("k", ++revision));
    EXPECT_TRUE(stopped.ok()) << member << ": " << stopped;
    cluster_->Signal(member, SIGCONT);
    cluster_->Kill(member);
    const absl::Status killed = leader->store->Commit(Bind("k", ++revision));
    EXPECT_TRUE(killed.ok()) << member << ": " << killed;
    cluster_->Restart(member);
    const absl::Status again = leader->store->Commit(Bind("k", ++revision));
    EXPECT_TRUE(again.ok()) << member << ": " << again;
  }
  EXPECT_EQ(RevisionOf(*leader->store, "k"), revision);
}

TEST_F(EtcdStore, LeaderWithoutEtcd_StepsDownAndCommitsNothing) {
  Start(1);
  const auto first = Lead(cluster_, "first", absl::Seconds(2));
  ASSERT_TRUE(first->store->Commit(Bind("k", 1)).ok());
  std::atomic<bool> told = false;
  first->leadership->OnLost([&](const absl::Status&) { told = true; });
  cluster_->Signal(0, SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return !first->leadership->Check().ok(); }));
  EXPECT_TRUE(Eventually([&] { return told.load(); }));
  cluster_->Signal(0, SIGCONT);
  const auto second = Lead(cluster_, "second");
  ASSERT_NE(second, nullptr);
  EXPECT_GT(second->leadership->epoch().number, first->leadership->epoch().number);
  EXPECT_EQ(first->store->Commit(Bind("k", 7)).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(second->store->Commit(Bind("k", 2)).ok());
  EXPECT_EQ(RevisionOf(*second->store, "k"), 2u);
}

// Its callers are to ask the next leader, and not to wait as long as etcd would be waited for.
TEST_F(EtcdStore, LostLeadership_EndsCallsInFlight) {
  Start(1);
  const auto leader = Lead(cluster_);
  ASSERT_TRUE(leader->store->Commit(Bind("k", 1)).ok());
  cluster_->Signal(0, SIGSTOP);
  constexpr int kCalls = 4;  // of which one is with etcd, and the others wait for it
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  std::vector<std::thread> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.emplace_back([&, i] {
      ++begun;
      const absl::Status outcome =
          i == 0 ? leader->store->Load().status() : leader->store->Commit(Bind("k", 2));
      EXPECT_THAT(std::string(outcome.message()), HasSubstr("enough of it")) << outcome;
      ++ended;
    });
  }
  ASSERT_TRUE(Eventually([&] { return begun == kCalls; }));
  leader->leadership->StepDown(absl::UnavailableError("enough of it"));
  EXPECT_TRUE(Eventually([&] { return ended == kCalls; }, absl::Seconds(8)))
      << "etcd is tried for ten seconds";
  for (std::thread& call : calls) call.join();
  cluster_->Signal(0, SIGCONT);
}

TEST_F(EtcdStore, SecondStore_LeadsWhenFirstResigns) {
  Start(1);
  auto first = Lead(cluster_, "first");
  std::atomic<bool> heard = false;
  std::shared_ptr<Member> second = std::make_shared<Member>();
  second->client = *Client::Create({.endpoints = cluster_->endpoints()});
  std::thread campaign([&] {
    auto leads =
        Leadership::Campaign(second->client.get(), {.prefix = kPrefix, .name = "second"},
                             RequestContext::Background(absl::Minutes(1)), [&](const StoreAddress& leader) {
                               EXPECT_EQ(leader, (StoreAddress{"first", "first:1"}));
                               heard = true;
                             });
    ASSERT_TRUE(leads.ok()) << leads.status();
    second->leadership = *std::move(leads);
  });
  EXPECT_TRUE(Eventually([&] { return heard.load(); }));
  EXPECT_TRUE(first->leadership->Check().ok());
  first.reset();
  campaign.join();
  ASSERT_NE(second->leadership, nullptr);
  EXPECT_TRUE(second->leadership->Check().ok());
}

TEST_F(EtcdStore, Commit_SucceedsAfterPreviousAnswerWasLost) {
  Start(1);
  const auto leader = Lead(cluster_);
  ASSERT_TRUE(leader->store->Commit(Bind("k", 1)).ok());
  // The number of an attempt with a lost answer, and a repetition that etcd refused.
  etcdserverpb::TxnRequest happened;
  etcdserverpb::PutRequest& put = *happened.add_success()->mutable_request_put();
  put.set_key(absl::StrCat(kPrefix, "/sequence"));
  put.set_value(EncodeCounter(1000));
  ASSERT_TRUE(leader->client->Txn(RequestContext::Background(), happened).ok());
  for (uint64_t revision = 2; revision < 5; ++revision) {
    ASSERT_TRUE(leader->store->Commit(Bind("k", revision)).ok());
    EXPECT_EQ(RevisionOf(*leader->store, "k"), revision);
  }
}

TEST_F(EtcdStore, FullQuota_IsReportedAndKeepsLeadership) {
  Start(1, {"--quota-backend-bytes=4194304"});
  const auto leader = Lead(cluster_);
  absl::Status status;
  for (int i = 0; i < 64 && status.ok(); ++i) {
    WriteBatch batch = Bind(absl::StrCat("k", i), 1);
    const std::string bytes(1 << 20, 'x');
    batch.manifests = {ManifestBlob{.artifact_id = absl::StrCat("a", i), .bytes = bytes}};
    status = leader->store->Commit(batch);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--quota-backend-bytes"));
  EXPECT_TRUE(leader->leadership->Check().ok()) << leader->leadership->Check();
  EXPECT_TRUE(leader->store->Load().ok()) << "what is there can be read";
}

TEST_F(EtcdStore, Purge_DeletesUnreferencedPieces) {
  Start(1);
  const auto leader = Lead(cluster_);
  const std::string bytes((3 << 20) + 5, 'x');
  for (int i = 0; i < 2; ++i) {
    WriteBatch batch = Bind("k", 1);
    batch.manifests = {ManifestBlob{.artifact_id = "a", .bytes = bytes}};
    ASSERT_TRUE(leader->store->Commit(batch).ok());
  }
  etcdserverpb::RangeRequest pieces;
  pieces.set_key(absl::StrCat(kPrefix, "/pieces/"));
  pieces.set_range_end(absl::StrCat(kPrefix, "/pieces0"));
  pieces.set_count_only(true);
  const auto count = [&] { return leader->client->Range(RequestContext::Background(), pieces)->count(); };
  EXPECT_EQ(count(), 8);
  ASSERT_TRUE(leader->store->Purge({}).ok());
  EXPECT_EQ(count(), 4);
  EXPECT_EQ(*leader->store->ReadManifest("a"), bytes);
}

TEST_F(EtcdStore, CopyMetadata_CopiesBetweenSqliteAndEtcd) {
  Start(1);
  const auto leader = Lead(cluster_);
  auto sqlite = OpenSqliteStore({.path = folder_.File("there")});
  ASSERT_TRUE(sqlite.ok()) << sqlite.status();
  const std::string manifest((1 << 20) + 7, 'x');  // two pieces
  for (int i = 0; i < 40; ++i) {
    WriteBatch batch = Bind(absl::StrCat("k", i), 3);
    batch.facts.artifacts = {{.artifact_id = absl::StrCat("a", i), .created = absl::UnixEpoch()}};
    batch.facts.nodes = {{.node_id = absl::StrCat("n", i), .name = "n"}};
    batch.manifests = {ManifestBlob{.artifact_id = absl::StrCat("a", i), .bytes = manifest}};
    ASSERT_TRUE((*sqlite)->Commit(batch).ok());
  }
  const auto copied = CopyMetadata(**sqlite, *leader->store);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->written, 120);
  const auto back = CopyMetadata(*leader->store, **sqlite);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->written, 0) << "they hold the same";
  EXPECT_EQ(RevisionOf(*leader->store, "k39"), 3u);
  EXPECT_EQ(*leader->store->ReadManifest("a39"), manifest);
}

// Etcd's own calls, as its administrator makes them.
class Administrator {
 public:
  explicit Administrator(const std::string& endpoint)
      : auth_(pb::Auth::NewStub(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))) {}

  void AddUser(const std::string& name, const std::string& password, const std::string& role) {
    pb::AuthUserAddRequest user;
    user.set_name(name);
    user.set_password(password);
    Call(&pb::Auth::Stub::UserAdd, user);
    pb::AuthRoleAddRequest added;
    added.set_name(role);
    Call(&pb::Auth::Stub::RoleAdd, added);
    pb::AuthUserGrantRoleRequest granted;
    granted.set_user(name);
    granted.set_role(role);
    Call(&pb::Auth::Stub::UserGrantRole, granted);
  }
  // To read and write what begins so.
  void Allow(const std::string& role, const std::string& prefix) {
    pb::AuthRoleGrantPermissionRequest request;
    request.set_name(role);
    request.mutable_perm()->set_permtype(authpb::Permission::READWRITE);
    request.mutable_perm()->set_key(prefix);
    request.mutable_perm()->set_range_end(prefix.substr(0, prefix.size() - 1) +
                                          static_cast<char>(prefix.back() + 1));
    Call(&pb::Auth::Stub::RoleGrantPermission, request);
  }
  void Enable(const std::string& name, const std::string& password) {
    Call(&pb::Auth::Stub::AuthEnable, pb::AuthEnableRequest());
    pb::AuthenticateRequest request;
    request.set_name(name);
    request.set_password(password);
    token_ = Call(&pb::Auth::Stub::Authenticate, request).token();
  }

 private:
  template <class Request, class Response>
  Response Call(grpc::Status (pb::Auth::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                const Request& request) {
    grpc::ClientContext context;
    if (!token_.empty()) context.AddMetadata("token", token_);
    Response response;
    const grpc::Status status = ((*auth_).*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  const std::unique_ptr<pb::Auth::Stub> auth_;
  std::string token_;
};

TEST_F(EtcdStore, UserWithPrefixRole_LeadsWhileRolesChange) {
  // With these tokens a change of roles is noticed at each call; with etcd's simple ones, at those that it
  // overtakes.
  const std::string key = absl::StrCat(folder_.path(), "/key");
  std::ofstream(key) << "any bytes will do";
  Start(3, {absl::StrCat("--auth-token=jwt,sign-method=HS256,ttl=10m,priv-key=", key)});
  ASSERT_NE(cluster_, nullptr);
  Administrator administrator(cluster_->endpoints().front());
  administrator.AddUser("root", "secret", "root");
  administrator.AddUser("store", "password", "stores");
  administrator.Allow("stores", absl::StrCat(kPrefix, "/"));
  administrator.Enable("root", "secret");
  const auto leader = Lead(cluster_, "a", absl::Minutes(1), {.user = "store", .password = "password"});
  ASSERT_NE(leader, nullptr);
  ASSERT_TRUE(leader->store->Commit(Bind("k", 1)).ok());
  // Tokens that were given before are worth nothing from here on.
  administrator.Allow("stores", "elsewhere/");
  const absl::Status changed = leader->store->Commit(Bind("k", 2));
  EXPECT_TRUE(changed.ok()) << changed;
  EXPECT_EQ(RevisionOf(*leader->store, "k"), 2u);

  const auto other =
      Client::Create({.endpoints = cluster_->endpoints(), .user = "store", .password = "a guess"});
  ASSERT_TRUE(other.ok());
  const absl::Status refused =
      Leadership::Campaign(other->get(), {.prefix = kPrefix, .name = "b", .address = "b:1"},
                           RequestContext::Background(absl::Minutes(1)), [](const StoreAddress&) {})
          .status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("authenticate with etcd as store")) << refused;
}

TEST_F(EtcdStore, OtherFormatVersion_IsRefused) {
  Start(1);
  auto client = *Client::Create({.endpoints = cluster_->endpoints()});
  etcdserverpb::TxnRequest newer;
  etcdserverpb::PutRequest& put = *newer.add_success()->mutable_request_put();
  put.set_key(absl::StrCat(kPrefix, "/format"));
  put.set_value("1");
  ASSERT_TRUE(client->Txn(RequestContext::Background(), newer).ok());
  const auto leads = Leadership::Campaign(client.get(), {.prefix = kPrefix}, RequestContext::Background(),
                                          [](const StoreAddress&) {});
  EXPECT_EQ(leads.status().code(), absl::StatusCode::kFailedPrecondition) << leads.status();
  EXPECT_THAT(std::string(leads.status().message()), HasSubstr("has format 1"));
}

TEST(EtcdClient, SilentEndpoints_AreNamedInTheError) {
  auto client = *Client::Create({.endpoints = {"127.0.0.1:1", "127.0.0.1:2"}});
  const auto answer = client->Range(RequestContext::Background(absl::Milliseconds(50)), {});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("127.0.0.1:1, 127.0.0.1:2"));
  EXPECT_EQ(Client::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::global_store::etcd

namespace tensorcast::global_store {

INSTANTIATE_TEST_SUITE_P(Etcd, MetadataStoreContract, ::testing::Values(etcd::OpenOnEtcd));

}  // namespace tensorcast::global_store
