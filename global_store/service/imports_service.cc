#include "global_store/service/imports_service.h"

#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "global_store/imports/import_claims.h"
#include "global_store/service/convert.h"
#include "global_store/service/speaker.h"
#include "proto/imports.grpc.pb.h"
#include "rpc/admission_queue.h"
#include "rpc/call_contexts.h"
#include "rpc/convert/convert.h"
#include "rpc/handlers.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kMaxImportIdBytes = 128;
// Little beside an import, and few calls while one runs.
constexpr absl::Duration kLookAgainForImport = absl::Milliseconds(500);

class ImportsService final : public v1::Imports::CallbackService {
 public:
  ImportsService(Coordinator* coordinator, rpc::AdmissionQueue* admission)
      : coordinator_(*coordinator), admission_(*admission) {}

  grpc::ServerUnaryReactor* ClaimImport(grpc::CallbackServerContext* call,
                                        const v1::ClaimImportRequest* request,
                                        v1::ClaimImportResponse* response) override {
    return rpc::HandleUnary(
        call, admission_.line(rpc::AdmissionQueue::Class::kCall),
        [this, request, response, peer = rpc::CallerOf(*call).peer](const RequestContext&) -> absl::Status {
          TC_RETURN_IF_ERROR(CheckSpeaksFor(coordinator_, peer, request->node().node_id()));
          TC_ASSIGN_OR_RETURN(*response, Claim(*request));
          return absl::OkStatus();
        });
  }

 private:
  absl::StatusOr<v1::ClaimImportResponse> Claim(const v1::ClaimImportRequest& request) {
    const std::string& import_id = request.import_id();
    if (import_id.empty() || import_id.size() > kMaxImportIdBytes) {
      return absl::InvalidArgumentError(absl::StrCat("claim an import: the import id has ", import_id.size(),
                                                     " bytes; give an id of 1 to ", kMaxImportIdBytes,
                                                     " bytes"));
    }
    const NodeIdentity node = FromProto(request.node());
    using Response = absl::StatusOr<v1::ClaimImportResponse>;
    return coordinator_.WithDirectory([&](const Directory& directory, SteadyTime now) -> Response {
      TC_RETURN_IF_ERROR(directory.membership().CheckIdentity(node));
      // The directory's lock is held, so that the claim and the existence of its artifact are of one moment.
      absl::MutexLock lock(&mutex_);
      v1::ClaimImportResponse response;
      // The node reads no more, whether it made the artifact or not.
      if (request.ended()) {
        claims_.End(node.node_id, node.incarnation, import_id, request.artifact_id(), now);
        return response;
      }
      // An import answers with its artifact. Where that was deleted since, this node may read the objects
      // again.
      ImportClaims::Answer answer = claims_.Claim(node.node_id, node.incarnation, import_id, now);
      if (!answer.artifact_id.empty() && directory.catalog().Find(answer.artifact_id) == nullptr) {
        claims_.Forget(import_id);  // deleted since
        answer = claims_.Claim(node.node_id, node.incarnation, import_id, now);
      }
      response.set_granted(answer.granted);
      response.set_artifact_id(answer.artifact_id);
      const Node* reading = directory.membership().Find(answer.reading_node_id);
      if (reading != nullptr) response.set_reading_node(reading->facts.name);
      // A holder renews its claim three times in its life; the other nodes look often whether it has ended.
      *response.mutable_retry_after() =
          rpc::ToProto(answer.granted ? claims_.ttl() / 3 : kLookAgainForImport);
      return response;
    });
  }

  Coordinator& coordinator_;
  rpc::AdmissionQueue& admission_;
  absl::Mutex mutex_;  // taken with the directory's held
  ImportClaims claims_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<grpc::Service> MakeImportsService(Coordinator* coordinator, rpc::AdmissionQueue* admission) {
  return std::make_unique<ImportsService>(coordinator, admission);
}

}  // namespace tensorcast::global_store
