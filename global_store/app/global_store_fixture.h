// A global store over a real socket, with a clock that tests set, and one-line forms of its calls.
#pragma once

#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "global_store/app/global_store_server.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/pieces.h"
#include "rpc/protocol_version.h"

namespace tensorcast::global_store {

using Stub = v1::GlobalStore::Stub;

inline std::shared_ptr<const Manifest> SomeManifest(const std::string& seed, int tensors = 1,
                                                    std::string_view tensor_name = "tensor.") {
  ImageLayout layout;
  for (int i = 0; i < tensors; ++i) {
    layout.tensors.push_back(
        {.name = absl::StrCat(tensor_name, i), .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {{"seed", seed}});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

// A manifest of kind files, with one file.
inline std::shared_ptr<const Manifest> SomeFiles() {
  ImageLayout layout{.tensors = {{.name = "config.json", .dtype = DType::kU8, .shape = {16}, .nbytes = 16}}};
  EXPECT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {}, ArtifactKind::kFiles);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

class GlobalStoreServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("global-store-", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_.listen = absl::StrCat("unix:", (folder_ / "gs.sock").string());
    options_.metadata_path = folder_ / "metadata.db";
    options_.clock = [this] { return SteadyTime() + absl::Nanoseconds(clock_ns_.load()); };
    options_.wall_clock = [this] { return absl::FromUnixNanos(clock_ns_.load()); };
    Start();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    auto server = GlobalStoreServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::GlobalStore::NewStub(rpc::MakeChannel(server_->address()));
  }
  void Restart() {
    server_.reset();
    Start();
  }
  void Pass(absl::Duration duration) { clock_ns_ += absl::ToInt64Nanoseconds(duration); }
  static RequestContext Context() { return RequestContext::Background(absl::Seconds(20)); }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const std::type_identity_t<Request>& request,
                                const RequestContext& context = Context()) {
    return rpc::CallUnary(*stub_, method, context, request);
  }

  v1::RegisterNodeResponse Register(const std::string& id, uint64_t incarnation = 1) {
    v1::RegisterNodeRequest request;
    v1::Node& node = *request.mutable_node();
    node.set_node_id(id);
    node.set_name(id);
    node.set_incarnation(incarnation);
    node.set_host_id(absl::StrCat("host of ", id));
    node.set_grpc_address(daemon_address_);
    node.add_lanes("ucx");
    node.set_protocol_version(rpc::kProtocolVersion);
    auto response = Call(&Stub::RegisterNode, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::RegisterNodeResponse{});
  }
  absl::StatusOr<v1::HeartbeatResponse> Beat(const std::string& id) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Identity(id);
    return Call(&Stub::Heartbeat, request);
  }
  static v1::NodeIdentity Identity(const std::string& id) {
    v1::NodeIdentity identity;
    identity.set_node_id(id);
    identity.set_incarnation(1);
    return identity;
  }
  static v1::Replica SomeReplica(const std::string& id, const std::string& artifact_id) {
    v1::Replica replica;
    replica.set_replica_id(id);
    replica.set_artifact_id(artifact_id);
    replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    replica.set_state(v1::REPLICA_STATE_READY);
    return replica;
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishBytes(const std::string& bytes,
                                                           v1::PublishArtifactRequest first,
                                                           const RequestContext& context = Context()) {
    return rpc::CallClientStream(*stub_, &Stub::PublishArtifact, context, rpc::PieceCount(bytes.size()),
                                 [&](size_t index) {
                                   v1::PublishArtifactRequest message;
                                   if (index == 0) message = first;
                                   message.set_manifest_piece(std::string(rpc::Piece(bytes, index)));
                                   return message;
                                 });
  }
  absl::StatusOr<v1::PublishArtifactResponse> Publish(const Manifest& manifest, const std::string& node,
                                                      const std::string& replica = "",
                                                      const std::string& key = "",
                                                      const RequestContext& context = Context()) {
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity(node);
    if (!replica.empty()) *first.mutable_replica() = SomeReplica(replica, manifest.id());
    first.set_key(key);
    return PublishBytes(manifest.bytes(), first, context);
  }
  // Publishes the files first, then the tensors with the key that binds both.
  absl::StatusOr<v1::PublishArtifactResponse> PublishWithFiles(const Manifest& manifest,
                                                               const Manifest& files, const std::string& node,
                                                               const std::string& key) {
    const auto published = Publish(files, node, "files");
    if (!published.ok()) return published;
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity(node);
    *first.mutable_replica() = SomeReplica("r", manifest.id());
    first.set_key(key);
    first.set_files_id(files.id());
    return PublishBytes(manifest.bytes(), first);
  }
  absl::StatusOr<v1::BindKeyResponse> Bind(const std::string& key, const std::string& artifact_id,
                                           const RequestContext& context = Context()) {
    v1::BindKeyRequest request;
    request.set_key(key);
    request.set_artifact_id(artifact_id);
    return Call(&Stub::BindKey, request, context);
  }
  absl::StatusOr<v1::Key> Resolve(const std::string& key) {
    v1::ResolveKeyRequest request;
    request.set_key(key);
    auto response = Call(&Stub::ResolveKey, request);
    if (!response.ok()) return response.status();
    return response->key();
  }
  absl::StatusOr<std::pair<v1::Artifact, std::string>> Describe(const std::string& artifact_id) {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(artifact_id);
    request.set_manifest(true);
    std::pair<v1::Artifact, std::string> described;
    const absl::Status status = rpc::CallServerStream(*stub_, &Stub::DescribeArtifact, Context(), request,
                                                      [&](v1::DescribeArtifactResponse&& message) {
                                                        if (message.has_artifact()) {
                                                          described.first = message.artifact();
                                                        }
                                                        described.second += message.manifest_piece();
                                                        return absl::OkStatus();
                                                      });
    if (!status.ok()) return status;
    return described;
  }
  absl::StatusOr<v1::RequestReplicaTransportResponse> RequestGrant(
      const std::string& receiver, const std::string& artifact_id,
      const RequestContext& context = Context()) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = Identity(receiver);
    request.set_artifact_id(artifact_id);
    request.mutable_timeout()->set_seconds(60);
    return Call(&Stub::RequestReplicaTransport, request, context);
  }

  std::filesystem::path folder_;
  GlobalStoreOptions options_;
  std::atomic<int64_t> clock_ns_ = int64_t{1'800'000'000} * 1'000'000'000;
  std::string daemon_address_ = "127.0.0.1:1";
  std::unique_ptr<GlobalStoreServer> server_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace tensorcast::global_store
