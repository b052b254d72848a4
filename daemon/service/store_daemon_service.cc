#include "daemon/service/store_daemon_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/telemetry/telemetry.h"
#include "otel/api/metrics.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call_contexts.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/retry.h"
#include "security/name.h"

namespace tensorcast::daemon {
namespace {

// How long an eviction's answer waits for the global store to have heard of it.
constexpr absl::Duration kTellsOfEviction = absl::Seconds(2);

// Progress is worth nothing once newer progress is there.
template <class Response>
OnProgress ProgressTo(rpc::StreamWriter<Response>& writer) {
  return [&writer](const TransferProgress& progress) {
    Response response;
    *response.mutable_progress() = rpc::ToProto(progress);
    writer.WriteLatest(std::move(response), "progress");
  };
}

// Which node calls, by its certificate; empty: it came without one.
std::string NodeNameOf(const grpc::CallbackServerContext& call) {
  const std::string peer = rpc::CallerOf(call).peer;
  if (peer.empty()) return "";
  const absl::StatusOr<security::Name> name = security::ParseName(peer);
  return name.ok() && name->role == security::Role::kNode ? name->name : "";
}

// Where the bytes of a load came from, as its metrics and its log line name it.
std::string_view LoadSourceOf(const v1::MaterializeReplicaResult& result) {
  if (result.already_present()) return "attached";
  // The furthest of several sources: what this node has itself may be the smaller part.
  std::string_view source = kLocalLane;
  for (const v1::StageReport& stage : result.transfer().stages()) {
    if (stage.lane() == kLocalLane) continue;
    if (stage.source_type() == SourceTypeName(SourceType::kRemote)) return stage.source_type();
    if (stage.source_type() == SourceTypeName(SourceType::kDisk)) source = stage.source_type();
  }
  return source;
}

// Of a partial replica what this request brought; else the image, wherever it came from.
template <class Result>
uint64_t BytesOf(const Result& result) {
  const bool partial = result.replica().state() == v1::REPLICA_STATE_PARTIAL;
  return partial ? result.transfer().bytes() : result.replica().image_bytes();
}

// As v1::Replica::chunk_bits has them.
std::string BitsOf(const std::vector<bool>& chunks) {
  std::string bits((chunks.size() + 7) / 8, '\0');
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk]) bits[chunk / 8] = static_cast<char>(bits[chunk / 8] | (1 << (chunk % 8)));
  }
  return bits;
}

// Runs `load` and tells how long its caller waited for the replica. `source` names where a result came from.
template <class Load, class Source>
auto Measured(const v1::Location& asked, Source source, Load load) {
  const SteadyTime start = SteadyNow();
  auto result = load();
  const absl::Duration took = SteadyNow() - start;
  const absl::StatusOr<Location> location = rpc::FromProto(asked);
  if (otel::IsMeasuring() && location.ok()) {
    RecordLoad(result.ok() ? source(*result) : "unknown", location->kind, took,
               result.ok() ? BytesOf(*result) : 0, result.status());
  }
  if (result.ok()) {
    const bool partial = result->replica().state() == v1::REPLICA_STATE_PARTIAL;
    LOG(INFO) << "replica " << result->replica().replica_id() << " of " << result->artifact_id() << " is "
              << (partial ? "partial: " : "ready: ") << source(*result) << ", " << BytesOf(*result)
              << " bytes in " << took;
  }
  return result;
}

bool Knows(const v1::MaterializeReplicaRequest& request, const std::string& artifact_id) {
  return std::ranges::count(request.known_manifests(), artifact_id) > 0;
}

template <class Response, class Result>
absl::Status WriteResult(absl::StatusOr<Result> result, rpc::StreamWriter<Response>& writer) {
  TC_RETURN_IF_ERROR(result.status());
  Response response;
  *response.mutable_result() = *std::move(result);
  return writer.Write(std::move(response));
}

// Room for a million tensors and their names.
constexpr rpc::StreamBounds kPutBounds{.max_bytes = uint64_t{128} << 20};

// What came of a put's stream. The first message has everything but the rest of the tensors.
struct ReceivedPut {
  v1::PutArtifactRequest request;
  bool first = true;
  Offer offer;  // given up with the call, where no ingest takes it
};

// What the put offers is taken at once: while the call waits for its turn the client owes it nothing, and a
// client that offers nothing has no stream to send either.
absl::Status Join(Sessions& sessions, v1::PutArtifactRequest&& next, ReceivedPut& received) {
  if (std::exchange(received.first, false)) {
    received.request = std::move(next);
    TC_ASSIGN_OR_RETURN(received.offer, sessions.TakeOffer(received.request.offer_token()));
    return absl::OkStatus();
  }
  for (v1::PutArtifactRequest::TensorDescription& tensor : *next.mutable_tensors()) {
    *received.request.add_tensors() = std::move(tensor);
  }
  return absl::OkStatus();
}

// This bound keeps clients from making the daemon report without a pause.
constexpr absl::Duration kMinWatchInterval = absl::Milliseconds(50);

// Two executors: calls that wait for a transfer, a disk or other nodes run on `waiting_`, those that answer
// at once on `quick_`, so that no number of transfers keeps a status or an attach from its answer.
class StoreDaemonService final : public v1::StoreDaemon::CallbackService {
 public:
  explicit StoreDaemonService(const StoreDaemonServiceOptions& options)
      : options_(options), quick_(*options.quick), waiting_(*options.waiting) {}

  using Call = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  grpc::ServerBidiReactor<v1::PutArtifactRequest, v1::PutArtifactResponse>* PutArtifact(Call* call) override {
    auto received = std::make_shared<ReceivedPut>();
    return rpc::HandleBidiStream<v1::PutArtifactRequest, v1::PutArtifactResponse>(
        call, waiting_,
        [this, received](v1::PutArtifactRequest&& next) {
          return Join(*options_.sessions, std::move(next), *received);
        },
        [this, received, asking = rpc::CallerOf(*call).asking](
            const RequestContext& context, rpc::StreamWriter<v1::PutArtifactResponse>& writer) {
          return WriteResult(Measured(
                                 received->request.location(), [](const auto&) { return "put"; },
                                 [&] {
                                   return options_.ingester->Put(context, received->request,
                                                                 std::move(received->offer), asking,
                                                                 ProgressTo(writer));
                                 }),
                             writer);
        },
        kPutBounds);
  }

  grpc::ServerWriteReactor<v1::PutArtifactResponse>* ImportArtifact(
      Call* call, const v1::ImportArtifactRequest* request) override {
    return rpc::HandleWriteStream<v1::PutArtifactResponse>(
        call, waiting_,
        [this, request, asking = rpc::CallerOf(*call).asking](
            const RequestContext& context, rpc::StreamWriter<v1::PutArtifactResponse>& writer) {
          return WriteResult(
              Measured(
                  request->location(), [](const auto&) { return "import"; },
                  [&] { return options_.ingester->Import(context, *request, asking, ProgressTo(writer)); }),
              writer);
        });
  }

  grpc::ServerWriteReactor<v1::MaterializeReplicaResponse>* MaterializeReplica(
      Call* call, const v1::MaterializeReplicaRequest* request) override {
    using Response = v1::MaterializeReplicaResponse;
    return rpc::HandleWriteStream<Response>(
        call, waiting_,
        [this, request](const RequestContext& context, rpc::StreamWriter<Response>& writer) -> absl::Status {
          if (request->attach()) {
            // A client that cannot reach the socket ends the call now, before bytes move for nothing.
            Response first;
            first.set_handle_socket(options_.node->Describe().handle_socket());
            TC_RETURN_IF_ERROR(writer.Write(std::move(first)));
          }
          std::shared_ptr<const Manifest> manifest;
          auto result = Measured(request->location(), LoadSourceOf, [&] {
            return options_.materializer->Materialize(context, *request, ProgressTo(writer), &manifest);
          });
          // The manifest goes before the result: a client that has the result has everything.
          if (result.ok() && request->manifest() && !Knows(*request, manifest->id())) {
            const auto next = rpc::ManifestPieces<Response>(manifest, manifest->bytes());
            while (std::optional<Response> piece = next()) {
              TC_RETURN_IF_ERROR(writer.Write(*std::move(piece)));
            }
          }
          return WriteResult(std::move(result), writer);
        });
  }

  Unary* AttachReplica(Call* call, const v1::AttachReplicaRequest* request,
                       v1::AttachReplicaResponse* response) override {
    return rpc::HandleUnary(
        call, quick_, [this, request, response, receiver = NodeNameOf(*call)](const RequestContext& context) {
          TC_ASSIGN_OR_RETURN(*response, options_.materializer->Attach(context, *request, receiver));
          return absl::OkStatus();
        });
  }

  Unary* EvictReplica(Call* call, const v1::EvictReplicaRequest* request,
                      v1::EvictReplicaResponse*) override {
    // The call runs on `waiting_`, since the eviction asks the global store for its consent.
    return rpc::HandleUnary(call, waiting_, [this, request](const RequestContext& context) {
      TC_RETURN_IF_ERROR(options_.engine->Evict(request->replica_id(), request->force()));
      // So that the next list of replicas does not have it. It is gone, whether the global store heard of it
      // or not.
      if (options_.link->standing().ok()) {
        options_.link->Flush(std::min(context.deadline, SteadyNow() + kTellsOfEviction)).IgnoreError();
      }
      return absl::OkStatus();
    });
  }

  Unary* CollectArchives(Call* call, const v1::CollectArchivesRequest* request,
                         v1::CollectArchivesResponse* response) override {
    return rpc::HandleUnary(call, waiting_,
                            [this, request, response](const RequestContext& context) -> absl::Status {
                              TC_ASSIGN_OR_RETURN(*response, options_.archiver->Collect(context, *request));
                              return absl::OkStatus();
                            });
  }

  Unary* PinReplica(Call* call, const v1::PinReplicaRequest* request, v1::PinReplicaResponse*) override {
    return rpc::HandleUnary(call, quick_, [this, request](const RequestContext&) {
      return options_.engine->SetPinned(request->replica_id(), true);
    });
  }

  Unary* UnpinReplica(Call* call, const v1::UnpinReplicaRequest* request,
                      v1::UnpinReplicaResponse*) override {
    return rpc::HandleUnary(call, quick_, [this, request](const RequestContext&) {
      return options_.engine->SetPinned(request->replica_id(), false);
    });
  }

  Unary* ListReplicas(Call* call, const v1::ListReplicasRequest* request,
                      v1::ListReplicasResponse* response) override {
    return rpc::HandleUnary(call, quick_, [this, request, response](const RequestContext&) {
      for (const ReplicaInfo& replica : options_.engine->ListReplicas()) {
        if (!request->artifact_id().empty() && replica.artifact_id != request->artifact_id()) continue;
        v1::Replica& listed = *response->add_replicas();
        listed = rpc::ToProto(replica);
        if (!request->chunk_bits()) continue;
        // It may have gone since, and then has none.
        const absl::StatusOr<std::vector<bool>> present = options_.engine->PresentChunks(replica.id);
        if (present.ok()) listed.set_chunk_bits(BitsOf(*present));
      }
      return absl::OkStatus();
    });
  }

  Unary* GetStatus(Call* call, const v1::GetStatusRequest*, v1::GetStatusResponse* response) override {
    return rpc::HandleUnary(call, quick_, [this, response](const RequestContext&) {
      *response = options_.status->Report();
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::GetStatusResponse>* WatchStatus(
      Call* call, const v1::WatchStatusRequest* request) override {
    return rpc::HandleWriteStream<v1::GetStatusResponse>(
        call, waiting_,
        [this, request](const RequestContext& context, rpc::StreamWriter<v1::GetStatusResponse>& writer) {
          const absl::Duration asked =
              request->has_interval() ? rpc::FromProto(request->interval()) : absl::Seconds(1);
          const absl::Duration interval = std::max(asked, kMinWatchInterval);
          // A watch would otherwise hold up the daemon that stops.
          while (!options_.node->draining()) {
            writer.WriteLatest(options_.status->Report(), "status");
            TC_RETURN_IF_ERROR(rpc::SleepFor(context, interval, "watch of the status"));
          }
          return options_.node->CheckAccepting();
        });
  }

  Unary* ExplainTransfer(Call* call, const v1::ExplainTransferRequest* request,
                         v1::ExplainTransferResponse* response) override {
    return rpc::HandleUnary(
        call, waiting_, [this, request, response](const RequestContext& context) -> absl::Status {
          TC_ASSIGN_OR_RETURN(*response, options_.explainer->Explain(context, request->transfer_id()));
          return absl::OkStatus();
        });
  }

  Unary* DescribeHop(Call* call, const v1::DescribeHopRequest* request, v1::TransferHop* response) override {
    return rpc::HandleUnary(call, quick_, [this, request, response](const RequestContext&) {
      *response = options_.status->DescribeHop(*request);
      return absl::OkStatus();
    });
  }

  Unary* OpenPull(Call* call, const v1::OpenPullRequest* request, v1::OpenPullResponse* response) override {
    return rpc::HandleUnary(call, quick_,
                            [this, request, response,
                             receiver = NodeNameOf(*call)](const RequestContext& context) -> absl::Status {
                              // A daemon that stops waits for its pulls, so it opens no further ones.
                              TC_RETURN_IF_ERROR(options_.node->CheckAccepting());
                              TC_ASSIGN_OR_RETURN(*response,
                                                  options_.servings->Open(*request, receiver, context.trace));
                              return absl::OkStatus();
                            });
  }

  Unary* ClosePull(Call* call, const v1::ClosePullRequest* request,
                   v1::ClosePullResponse* response) override {
    return rpc::HandleUnary(
        call, quick_,
        [this, request, response, caller = NodeNameOf(*call)](const RequestContext&) -> absl::Status {
          const absl::Status why = rpc::FromProto(request->error());
          TC_ASSIGN_OR_RETURN(const uint64_t bytes,
                              options_.servings->Close(request->grant_id(), caller, why));
          response->set_bytes_served(bytes);
          return absl::OkStatus();
        });
  }

  Unary* ProbeNode(Call* call, const v1::ProbeNodeRequest* request,
                   v1::ProbeNodeResponse* response) override {
    return rpc::HandleUnary(
        call, waiting_, [this, request, response](const RequestContext& context) -> absl::Status {
          TC_ASSIGN_OR_RETURN(*response, options_.probe->Probe(context, request->node_id()));
          return absl::OkStatus();
        });
  }

  Unary* CheckOrigin(Call* call, const v1::CheckOriginRequest* request,
                     v1::CheckOriginResponse* response) override {
    return rpc::HandleUnary(
        call, quick_, [this, request, response](const RequestContext& context) -> absl::Status {
          // Its address may be another node's by now.
          if (request->origin().node_id() != options_.node->id()) {
            return absl::InvalidArgumentError(absl::StrCat("check an origin: the origin is on node ",
                                                           request->origin().node_id(), ", and this node is ",
                                                           options_.node->id(), "; ask that node"));
          }
          const Origin origin = rpc::FromProto(request->origin());
          TC_ASSIGN_OR_RETURN(OriginChecker::Finding finding, options_.origins->Check(context, origin));
          response->set_intact(finding.intact);
          response->set_mutable_objects(finding.is_mutable);
          response->set_reason(std::move(finding.reason));
          // The files are intact by size and time. As a copy such files count only after every digest was
          // compared once. This asks how far that has come, and begins it.
          if (!finding.intact || request->artifact_id().empty() || origin.compared || origin.untraceable ||
              IsShared(origin)) {
            return absl::OkStatus();
          }
          const OriginComparer::Standing standing =
              options_.comparer->Compare(request->artifact_id(), origin);
          // Only different bytes take the origin away. Any other error means that the comparison is not done
          // yet.
          response->set_intact(!absl::IsDataLoss(standing.error));
          response->set_reason(std::string(standing.error.message()));
          if (!standing.error.ok()) return absl::OkStatus();
          response->set_compared_bytes(standing.compared_bytes);
          response->set_compare_bytes(standing.total_bytes);
          return absl::OkStatus();
        });
  }

 private:
  const StoreDaemonServiceOptions options_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeStoreDaemonService(const StoreDaemonServiceOptions& options) {
  return std::make_unique<StoreDaemonService>(options);
}

}  // namespace tensorcast::daemon
