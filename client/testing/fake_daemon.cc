#include "client/testing/fake_daemon.h"

#include <algorithm>
#include <cstring>

#include "absl/log/check.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/difference/difference_artifact.h"
#include "core/handles/put_ring.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

constexpr char kReplicaId[] = "replica-1";
constexpr size_t kSmallPiece = 100;  // so that a test's manifest comes in several

ImageLayout LayoutOf(const v1::PutArtifactRequest& put) {
  ImageLayout layout;
  for (const auto& description : put.tensors()) {
    Tensor tensor;
    tensor.name = description.name();
    tensor.dtype = FindDType(description.dtype())->dtype;
    tensor.shape.assign(description.shape().begin(), description.shape().end());
    tensor.nbytes = *TensorBytes(tensor.dtype, tensor.shape);
    layout.tensors.push_back(tensor);
  }
  CHECK_OK(AssignOffsets(layout));
  return layout;
}

std::vector<ChunkDigests> DigestsOf(const ImageLayout& layout, const std::byte* image) {
  std::vector<ChunkDigests> digests;
  for (uint32_t i = 0; i < layout.chunk_count(); ++i) {
    const ByteRange range = layout.chunk(i);
    const std::span<const std::byte> chunk(image + range.offset, range.bytes);
    digests.push_back({.xxh3 = ComputeDigest(chunk), .blake3 = ComputeBlake3(chunk)});
  }
  return digests;
}

}  // namespace

class FakeDaemon::StoreDaemonService final : public v1::StoreDaemon::CallbackService {
 public:
  explicit StoreDaemonService(FakeDaemon* fake) : fake_(*fake) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* call, const v1::GetStatusRequest*,
                                      v1::GetStatusResponse* response) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, response](const RequestContext&) {
      response->mutable_node()->set_handle_socket(fake_.handle_socket());
      response->mutable_node()->set_node_id("node-id");
      response->mutable_node()->set_name("node-name");
      response->set_global_store_error("it does not answer");
      v1::Pool& pool = *response->add_pools();
      pool.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
      pool.mutable_location()->set_device(2);
      pool.set_capacity_bytes(3000);
      pool.set_used_bytes(200);
      pool.set_pinned_bytes(100);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ListReplicas(grpc::CallbackServerContext* call,
                                         const v1::ListReplicasRequest* request,
                                         v1::ListReplicasResponse* response) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, request, response](const RequestContext&) {
      if (fake_.Find(request->artifact_id()).ok()) response->add_replicas()->set_replica_id(kReplicaId);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* PinReplica(grpc::CallbackServerContext* call,
                                       const v1::PinReplicaRequest* request,
                                       v1::PinReplicaResponse*) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, request](const RequestContext&) {
      if (request->replica_id() != kReplicaId) return absl::NotFoundError("there is no such replica");
      absl::MutexLock lock(&fake_.mutex_);
      fake_.pinned_.insert(request->replica_id());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* UnpinReplica(grpc::CallbackServerContext* call,
                                         const v1::UnpinReplicaRequest* request,
                                         v1::UnpinReplicaResponse*) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, request](const RequestContext&) {
      if (request->replica_id() != kReplicaId) return absl::NotFoundError("there is no such replica");
      absl::MutexLock lock(&fake_.mutex_);
      fake_.pinned_.erase(request->replica_id());
      return absl::OkStatus();
    });
  }

  grpc::ServerBidiReactor<v1::PutArtifactRequest, v1::PutArtifactResponse>* PutArtifact(
      grpc::CallbackServerContext* call) override {
    auto put = std::make_shared<v1::PutArtifactRequest>();
    return rpc::HandleBidiStream<v1::PutArtifactRequest, v1::PutArtifactResponse>(
        call, fake_.executor_,
        [put](v1::PutArtifactRequest&& message) {
          put->MergeFrom(message);
          return absl::OkStatus();
        },
        [this, put](const RequestContext&, rpc::StreamWriter<v1::PutArtifactResponse>& writer) {
          return AnswerPut(*put, writer);
        });
  }

  grpc::ServerWriteReactor<v1::PutArtifactResponse>* ImportArtifact(
      grpc::CallbackServerContext* call, const v1::ImportArtifactRequest* request) override {
    return rpc::HandleWriteStream<v1::PutArtifactResponse>(
        call, fake_.executor_,
        [this, request](const RequestContext& context, rpc::StreamWriter<v1::PutArtifactResponse>& writer) {
          fake_.request_ids.push_back(context.request_id);
          TC_RETURN_IF_ERROR(fake_.on_import(*request));
          v1::PutArtifactResponse response;
          response.mutable_result()->set_artifact_id("tc2:imported");
          return writer.Write(std::move(response));
        });
  }

  grpc::ServerWriteReactor<v1::MaterializeReplicaResponse>* MaterializeReplica(
      grpc::CallbackServerContext* call, const v1::MaterializeReplicaRequest* request) override {
    return rpc::HandleWriteStream<v1::MaterializeReplicaResponse>(
        call, fake_.executor_,
        [this, request](const RequestContext& context,
                        rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer) {
          return Materialize(context, *request, writer);
        });
  }

 private:
  absl::Status AnswerPut(const v1::PutArtifactRequest& put,
                         rpc::StreamWriter<v1::PutArtifactResponse>& writer) {
    TC_ASSIGN_OR_RETURN(const std::string artifact_id, fake_.Keep(put));
    if (fake_.unavailable_puts.fetch_sub(1) > 0) return absl::UnavailableError("starting");
    fake_.unavailable_puts = 0;
    v1::PutArtifactResponse progress;
    progress.mutable_progress()->set_bytes_done(1);
    TC_RETURN_IF_ERROR(writer.Write(std::move(progress)));
    v1::PutArtifactResponse response;
    response.mutable_result()->set_artifact_id(artifact_id);
    response.mutable_result()->mutable_replica()->set_replica_id(kReplicaId);
    response.mutable_result()->mutable_transfer()->set_bytes(7);
    if (put.has_binding()) {
      fake_.SetKey(put.binding().key(), artifact_id, 1);
      response.mutable_result()->set_key_revision(1);
    }
    return writer.Write(std::move(response));
  }

  absl::Status Materialize(const RequestContext& context, const v1::MaterializeReplicaRequest& request,
                           rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer) {
    if (fake_.unavailable_materializes.fetch_sub(1) > 0) return absl::UnavailableError("starting");
    fake_.unavailable_materializes = 0;
    if (request.attach()) {
      v1::MaterializeReplicaResponse first;
      first.set_handle_socket(fake_.handle_socket());
      TC_RETURN_IF_ERROR(writer.Write(std::move(first)));
    }
    v1::MaterializeReplicaResponse progress;
    progress.mutable_progress()->set_bytes_done(5);
    TC_RETURN_IF_ERROR(writer.Write(std::move(progress)));
    {
      absl::MutexLock lock(&fake_.mutex_);
      fake_.last_materialize = request;
    }
    while (fake_.hang_materialize && context.Check("hanging").ok()) absl::SleepFor(absl::Milliseconds(1));
    TC_RETURN_IF_ERROR(context.Check("materializing"));

    v1::MaterializeReplicaResponse response;
    v1::MaterializeReplicaResult& result = *response.mutable_result();
    result.set_artifact_id(request.artifact_id());
    if (request.has_key()) {
      absl::MutexLock lock(&fake_.mutex_);
      auto it = fake_.keys_.find(request.key());
      if (it == fake_.keys_.end()) return absl::NotFoundError("there is no key " + request.key());
      result.set_artifact_id(it->second.artifact_id());
      result.set_key_revision(it->second.revision());
      result.set_files_id(it->second.files_id());
    }
    TC_ASSIGN_OR_RETURN(const Stored stored, fake_.Find(result.artifact_id()));
    if (request.manifest() && std::ranges::count(request.known_manifests(), result.artifact_id()) == 0) {
      TC_RETURN_IF_ERROR(fake_.SendManifest(*stored.manifest, writer));
    }
    result.mutable_replica()->set_replica_id(kReplicaId);
    *result.mutable_replica()->mutable_location() = request.location();
    result.set_already_present(true);
    if (request.attach()) result.set_ticket(fake_.handles_->IssueTicket(fake_.ClaimOf(stored)));
    TC_RETURN_IF_ERROR(writer.Write(std::move(response)));
    if (!fake_.hang_after_result) return absl::OkStatus();
    v1::MaterializeReplicaResponse more;
    more.mutable_progress()->set_bytes_done(kBytesAfterResult);
    TC_RETURN_IF_ERROR(writer.Write(std::move(more)));
    absl::Notification cancelled;
    const Cancellation::Registration registration =
        context.cancellation.OnCancel([&cancelled] { cancelled.Notify(); });
    cancelled.WaitForNotification();
    return context.Check("materializing");
  }

  FakeDaemon& fake_;
};

class FakeDaemon::GlobalStoreService final : public v1::GlobalStore::CallbackService {
 public:
  explicit GlobalStoreService(FakeDaemon* fake) : fake_(*fake) {}

  grpc::ServerUnaryReactor* BindKey(grpc::CallbackServerContext* call, const v1::BindKeyRequest* request,
                                    v1::BindKeyResponse* response) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, request, response](const RequestContext& context) {
      fake_.request_ids.push_back(context.request_id);
      if (request->has_expected_revision() && request->expected_revision() != 0) {
        return absl::FailedPreconditionError("the key has another revision");
      }
      fake_.SetKey(request->key(), request->artifact_id(), 1);
      response->mutable_key()->set_name(request->key());
      response->mutable_key()->set_artifact_id(request->artifact_id());
      response->mutable_key()->set_revision(1);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call,
                                       const v1::ResolveKeyRequest* request,
                                       v1::ResolveKeyResponse* response) override {
    return rpc::HandleUnary(call, fake_.executor_,
                            [this, request, response](const RequestContext&) -> absl::Status {
                              absl::MutexLock lock(&fake_.mutex_);
                              const auto it = fake_.keys_.find(request->key());
                              if (it == fake_.keys_.end()) return absl::NotFoundError("there is no such key");
                              *response->mutable_key() = it->second;
                              return absl::OkStatus();
                            });
  }

  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) override {
    return rpc::HandleWriteStream<v1::DescribeArtifactResponse>(
        call, fake_.executor_,
        [this, request](const RequestContext&, rpc::StreamWriter<v1::DescribeArtifactResponse>& writer) {
          v1::DescribeArtifactResponse response;
          response.mutable_artifact()->set_artifact_id(request->artifact_id());
          {
            absl::MutexLock lock(&fake_.mutex_);
            for (const v1::Difference& edge : fake_.differences_) {
              if (edge.target_id() == request->artifact_id()) {
                *response.mutable_artifact()->add_differences() = edge;
              }
            }
          }
          return writer.Write(std::move(response));
        });
  }

  // One key a page, so that clients have to ask for more.
  grpc::ServerUnaryReactor* ListKeys(grpc::CallbackServerContext* call, const v1::ListKeysRequest* request,
                                     v1::ListKeysResponse* response) override {
    return rpc::HandleUnary(call, fake_.executor_, [this, request, response](const RequestContext&) {
      absl::MutexLock lock(&fake_.mutex_);
      auto it = fake_.keys_.upper_bound(request->page_token());
      if (it != fake_.keys_.end()) *response->add_keys() = it->second;
      if (it != fake_.keys_.end() && std::next(it) != fake_.keys_.end()) {
        response->set_next_page_token(it->first);
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::WatchKeysResponse>* WatchKeys(grpc::CallbackServerContext* call,
                                                             const v1::WatchKeysRequest*) override {
    return rpc::HandleWriteStreamAsync<v1::WatchKeysResponse>(
        call, fake_.executor_,
        [this](const RequestContext&, std::shared_ptr<rpc::StreamWriter<v1::WatchKeysResponse>> writer,
               const rpc::Finisher& finisher) {
          absl::MutexLock lock(&fake_.mutex_);
          for (const auto& [name, key] : fake_.keys_) {
            v1::WatchKeysResponse response;
            *response.mutable_key() = key;
            writer->WriteLatest(std::move(response), name);
          }
          v1::WatchKeysResponse listed;
          listed.set_listed(true);
          writer->WriteLatest(std::move(listed));
          fake_.watchers_.emplace_back(std::move(writer), finisher);
        });
  }

 private:
  FakeDaemon& fake_;
};

absl::Status FakeDaemon::SendManifest(const Manifest& manifest,
                                      rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer) {
  ++manifests_sent;
  std::string bytes = manifest.bytes();
  if (corrupt_manifest) bytes.back() ^= 1;
  for (size_t i = 0; i < rpc::PieceCount(bytes.size(), kSmallPiece); ++i) {
    v1::MaterializeReplicaResponse response;
    response.set_manifest_piece(std::string(rpc::Piece(bytes, i, kSmallPiece)));
    TC_RETURN_IF_ERROR(writer.Write(std::move(response)));
  }
  return absl::OkStatus();
}

FakeDaemon::FakeDaemon(const std::string& folder) : folder_(folder) {
  auto pool = HostPool::Create({.bytes = uint64_t{16} << 20, .use_huge_pages = false, .prefault_threads = 0});
  CHECK_OK(pool.status());
  pool_ = *std::move(pool);
  daemon_service_ = std::make_unique<StoreDaemonService>(this);
  store_service_ = std::make_unique<GlobalStoreService>(this);
  address_ = "unix:" + folder_ + "/daemon.sock";
  Serve();
}

FakeDaemon::~FakeDaemon() { StopServing(); }

void FakeDaemon::Serve() {
  auto handles = HandleServer::Start({.path = folder_ + "/handles.sock"});
  CHECK_OK(handles.status());
  handles_ = *std::move(handles);
  auto server =
      rpc::Server::Start({.listen = {address_}, .services = {daemon_service_.get(), store_service_.get()}});
  CHECK_OK(server.status());
  server_ = *std::move(server);
}

void FakeDaemon::StopServing() {
  BreakWatches();
  server_.reset();
  handles_.reset();
}

absl::StatusOr<std::string> FakeDaemon::Keep(const v1::PutArtifactRequest& put) {
  TC_ASSIGN_OR_RETURN(const Offer offer, handles_->TakeOffer(put.offer_token()));
  if (offer.ring == nullptr) return absl::InvalidArgumentError("nothing is streamed");
  ImageLayout layout = LayoutOf(put);
  if (offer.bytes != layout.image_bytes) {
    return absl::InvalidArgumentError("the offer is not the image's size");
  }
  std::vector<std::byte> image;
  const auto slot_bytes = offer.ring->shape().slot_bytes;
  while (image.size() < offer.bytes) {
    const uint64_t left = offer.bytes - image.size();
    offer.ring->Ask(0, image.size(), static_cast<uint32_t>(std::min<uint64_t>(left, slot_bytes)));
    TC_ASSIGN_OR_RETURN(const ConstHostSpan piece,
                        offer.ring->Await(RequestContext::Background(absl::Seconds(30)), 0, "the put"));
    image.insert(image.end(), piece.begin(), piece.end());
  }
  {
    absl::MutexLock lock(&mutex_);
    last_put = put;
  }
  return Store(std::move(layout), image, {put.metadata().begin(), put.metadata().end()},
               ArtifactKind::kTensors);
}

absl::StatusOr<std::string> FakeDaemon::Store(ImageLayout layout, std::span<const std::byte> image,
                                              std::map<std::string, std::string> metadata,
                                              ArtifactKind kind) {
  TC_ASSIGN_OR_RETURN(HostAllocation memory, pool_->Allocate(image.size()));
  const std::byte* next = image.data();
  std::vector<ChunkDigests> digests = DigestsOf(layout, next);
  for (const HostSpan& span : memory.Spans(0, image.size())) {
    std::memcpy(span.data(), next, span.size());
    next += span.size();
  }
  TC_ASSIGN_OR_RETURN(auto manifest,
                      Manifest::Create(std::move(layout), std::move(digests), std::move(metadata), kind));
  absl::MutexLock lock(&mutex_);
  stored_[manifest->id()] = {manifest, std::make_shared<HostAllocation>(std::move(memory))};
  return manifest->id();
}

void FakeDaemon::KeepDifference(const std::string& base_id, const std::string& target_id,
                                const EncodedDifference& difference) {
  std::vector<std::byte> image(difference.layout.image_bytes);
  difference.CopyImage({0, image.size()}, image.data());
  const auto stored =
      Store(difference.layout, image, DifferenceMetadata({.base = base_id, .target = target_id}),
            ArtifactKind::kDifference);
  CHECK_OK(stored.status());
  v1::Difference edge;
  edge.set_artifact_id(*stored);
  edge.set_base_id(base_id);
  edge.set_target_id(target_id);
  absl::MutexLock lock(&mutex_);
  differences_.push_back(std::move(edge));
}

void FakeDaemon::ForgetDifferences() {
  absl::MutexLock lock(&mutex_);
  differences_.clear();
}

absl::StatusOr<FakeDaemon::Stored> FakeDaemon::Find(const std::string& artifact_id) {
  absl::MutexLock lock(&mutex_);
  auto it = stored_.find(artifact_id);
  if (it == stored_.end()) return absl::NotFoundError("there is no artifact " + artifact_id);
  return it->second;
}

Claim FakeDaemon::ClaimOf(const Stored& stored) {
  Claim claim;
  claim.handles.replica_id = kReplicaId;
  claim.handles.artifact_id = stored.manifest->id();
  claim.handles.image_bytes = stored.manifest->layout().image_bytes;
  if (image_bytes_of_claims > 0) claim.handles.image_bytes = image_bytes_of_claims;
  claim.hold = stored.memory;
  if (device_claims) {
    claim.handles.memory =
        DeviceHandles{{.device_uuid = "FAKE-0", .opaque = "handle", .bytes = claim.handles.image_bytes}};
    return claim;
  }
  SetHostMemory(claim, *pool_, "pool", *stored.memory);
  return claim;
}

void FakeDaemon::SetKey(const std::string& key, const std::string& artifact_id, uint64_t revision,
                        const std::string& files_id) {
  absl::MutexLock lock(&mutex_);
  v1::WatchKeysResponse change;
  change.mutable_key()->set_name(key);
  change.mutable_key()->set_artifact_id(artifact_id);
  change.mutable_key()->set_revision(revision);
  change.mutable_key()->set_files_id(files_id);
  keys_[key] = change.key();
  Tell(change);
}

void FakeDaemon::RemoveKey(const std::string& key, bool tell_watchers) {
  absl::MutexLock lock(&mutex_);
  v1::WatchKeysResponse change;
  *change.mutable_key() = keys_[key];
  change.set_deleted(true);
  keys_.erase(key);
  if (tell_watchers) Tell(change);
}

void FakeDaemon::Tell(const v1::WatchKeysResponse& change) {
  for (auto& [writer, finisher] : watchers_) writer->WriteLatest(change, change.key().name());
}

std::set<std::string> FakeDaemon::pinned() const {
  absl::MutexLock lock(&mutex_);
  return pinned_;
}

int FakeDaemon::watchers() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(watchers_.size());
}

void FakeDaemon::BreakWatches() {
  absl::MutexLock lock(&mutex_);
  for (auto& [writer, finisher] : watchers_) finisher.Finish(absl::UnavailableError("restarting"));
  watchers_.clear();
}

}  // namespace tensorcast::client
