// Measures a global store on three members of etcd, beside etcd itself and beside a store on SQLite, with 16
// callers: publications of small artifacts beside etcd's own puts of as many bytes; resolved keys; and the
// time to begin to lead with many artifacts. Medians of alternating runs:
//   etcd_benchmark --benchmark_repetitions=7 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>
#include <grpcpp/channel.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/testing/temp_folder.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "global_store/app/global_store_server.h"
#include "global_store/metadata/etcd/store.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/protocol_version.h"

namespace tensorcast::global_store {
namespace {

using Stub = v1::GlobalStore::Stub;

constexpr int kCallers = 16;

RequestContext Context() { return RequestContext::Background(absl::Minutes(1)); }

// Of a file system that a metadata store would have, not of memory.
struct Places {
  tensorcast::testing::TempFolder folder{"/var/tmp"};
  std::unique_ptr<etcd::EtcdCluster> cluster = *etcd::EtcdCluster::Start(folder.File("etcd"), 3);
};
Places& ThePlaces() {
  static Places& places = *new Places;
  return places;
}

EtcdOptions OnEtcd(const std::string& prefix) {
  EtcdOptions options;
  options.client.endpoints = ThePlaces().cluster->endpoints();
  options.leadership = {.prefix = prefix, .ttl = absl::Minutes(1), .name = "a", .address = "a:1"};
  return options;
}

// A server, a node that is registered with it, and a key.
struct Served {
  explicit Served(const std::string& kind) {
    GlobalStoreOptions options;
    options.metadata_store = kind;
    options.metadata_path = ThePlaces().folder.File("metadata.db");
    options.etcd = OnEtcd("served");
    options.node_ttl = absl::Hours(1);
    server = *GlobalStoreServer::Start(options);
    stub = v1::GlobalStore::NewStub(rpc::MakeChannel(server->address()));
    v1::RegisterNodeRequest node;
    node.mutable_node()->set_node_id("n");
    node.mutable_node()->set_name("n");
    node.mutable_node()->set_incarnation(1);
    node.mutable_node()->set_host_id("h");
    node.mutable_node()->set_grpc_address("127.0.0.1:1");
    node.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    CHECK_OK(rpc::CallUnary(*stub, &Stub::RegisterNode, Context(), node).status());
    Publish(0);
  }

  // Another artifact and key for each number.
  void Publish(uint64_t number) {
    ImageLayout layout;
    layout.tensors.push_back({.name = "weight", .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
    CHECK_OK(AssignOffsets(layout));
    const auto manifest =
        *Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {{"seed", absl::StrCat(number)}});
    v1::PublishArtifactRequest first;
    first.mutable_node()->set_node_id("n");
    first.mutable_node()->set_incarnation(1);
    first.set_key(absl::StrCat("key/", number));
    first.set_manifest_piece(manifest->bytes());
    CHECK_OK(rpc::CallClientStream(*stub, &Stub::PublishArtifact, Context(), 1, [&](size_t) {
               return first;
             }).status());
  }

  std::unique_ptr<GlobalStoreServer> server;
  std::unique_ptr<Stub> stub;
  std::atomic<uint64_t> published{1};
};

Served& ServedOn(const std::string& kind) {
  static std::map<std::string, std::unique_ptr<Served>>& served =
      *new std::map<std::string, std::unique_ptr<Served>>;
  static absl::Mutex& mutex = *new absl::Mutex;
  absl::MutexLock lock(&mutex);
  std::unique_ptr<Served>& one = served[kind];
  if (one == nullptr) one = std::make_unique<Served>(kind);
  return *one;
}

void Publish(benchmark::State& state, const std::string& kind) {
  Served& served = ServedOn(kind);
  for (auto _ : state) served.Publish(served.published++);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

// As many clients as there are callers, each with a connection of its own.
void EtcdPut(benchmark::State& state) {
  const auto client = *etcd::Client::Create(OnEtcd("").client);
  etcdserverpb::TxnRequest request;
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  static std::atomic<uint64_t> next{0};
  for (auto _ : state) {
    put.set_key(absl::StrCat("put/", next++));
    put.set_value(std::string(1024, 'x'));
    CHECK_OK(client->Txn(Context(), request).status());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

void Resolve(benchmark::State& state, const std::string& kind) {
  Served& served = ServedOn(kind);
  v1::ResolveKeyRequest request;
  request.set_key("key/0");
  for (auto _ : state) CHECK_OK(rpc::CallUnary(*served.stub, &Stub::ResolveKey, Context(), request).status());
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}

// From an etcd that has so many artifacts to a server that answers.
void Lead(benchmark::State& state) {
  const std::string prefix = absl::StrCat("many", state.range(0));
  GlobalStoreOptions options;
  options.metadata_store = "etcd";
  options.etcd = OnEtcd(prefix);
  {
    const auto client = *etcd::Client::Create(options.etcd.client);
    const auto leadership = *etcd::Leadership::Campaign(client.get(), options.etcd.leadership, Context(),
                                                        [](const etcd::StoreAddress&) {});
    const auto store = etcd::MakeStore(client.get(), leadership.get(), prefix);
    if (store->Load()->artifacts.empty()) {
      constexpr int64_t kTogether = 500;
      for (int64_t begin = 0; begin < state.range(0); begin += kTogether) {
        WriteBatch batch;
        for (int64_t i = begin; i < std::min(begin + kTogether, state.range(0)); ++i) {
          // As long as an artifact's id is.
          const std::string id = absl::StrFormat("tc2:%052d", i);
          batch.facts.artifacts.push_back({.artifact_id = id,
                                           .image_bytes = 1 << 30,
                                           .chunk_bytes = 16 << 20,
                                           .tensor_count = 300,
                                           .created = absl::Now(),
                                           .origins = {{"node", {{"/models/of/some/team/model", 1, "2"}}}},
                                           .updated = absl::Now()});
          batch.facts.keys.push_back({absl::StrCat("key/", i), id, 1, absl::Now()});
        }
        CHECK_OK(store->Commit(batch));
      }
    }
  }
  for (auto _ : state) {
    auto server = *GlobalStoreServer::Start(options);
    const auto stub = v1::GlobalStore::NewStub(rpc::MakeChannel(server->address()));
    v1::ResolveKeyRequest request;
    request.set_key("key/0");
    CHECK_OK(rpc::CallUnary(*stub, &Stub::ResolveKey, Context(), request).status());
    state.PauseTiming();
    server.reset();
    state.ResumeTiming();
  }
}

// On the main thread: etcd ends with the thread that started it.
void StartEtcd(const benchmark::State&) { ThePlaces(); }

BENCHMARK(EtcdPut)->Threads(kCallers)->Setup(StartEtcd)->UseRealTime();
BENCHMARK_CAPTURE(Publish, etcd, std::string("etcd"))->Threads(kCallers)->Setup(StartEtcd)->UseRealTime();
BENCHMARK_CAPTURE(Publish, sqlite, std::string("sqlite"))->Threads(kCallers)->Setup(StartEtcd)->UseRealTime();
BENCHMARK_CAPTURE(Resolve, etcd, std::string("etcd"))->Threads(kCallers)->Setup(StartEtcd)->UseRealTime();
BENCHMARK_CAPTURE(Resolve, sqlite, std::string("sqlite"))->Threads(kCallers)->Setup(StartEtcd)->UseRealTime();
BENCHMARK(Lead)->Arg(100'000)->Iterations(1)->Setup(StartEtcd)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tensorcast::global_store
