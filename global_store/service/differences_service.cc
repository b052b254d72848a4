#include "global_store/service/differences_service.h"

#include <cstddef>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/log/log.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "global_store/service/convert.h"
#include "global_store/service/speaker.h"
#include "proto/differences.grpc.pb.h"
#include "rpc/admission_queue.h"
#include "rpc/call_contexts.h"
#include "rpc/handlers.h"

namespace tensorcast::global_store {
namespace {

// One node that lies must not delete a difference that helps all others.
constexpr size_t kEnoughNodes = 2;
// With one report each; beyond it the reports of the smallest id are forgotten.
constexpr size_t kMaxReported = 4096;

class DifferencesService final : public v1::Differences::CallbackService {
 public:
  DifferencesService(Coordinator* coordinator, rpc::AdmissionQueue* admission)
      : coordinator_(*coordinator), admission_(*admission) {}

  grpc::ServerUnaryReactor* ReportWrongDifference(grpc::CallbackServerContext* call,
                                                  const v1::ReportWrongDifferenceRequest* request,
                                                  v1::ReportWrongDifferenceResponse* response) override {
    return rpc::HandleUnary(
        call, admission_.line(rpc::AdmissionQueue::Class::kCall),
        [this, request, response, peer = rpc::CallerOf(*call).peer](const RequestContext&) -> absl::Status {
          TC_RETURN_IF_ERROR(CheckSpeaksFor(coordinator_, peer, request->node().node_id()));
          TC_ASSIGN_OR_RETURN(const bool enough, Note(*request));
          if (!enough) return absl::OkStatus();
          TC_RETURN_IF_ERROR(Delete(request->artifact_id()));
          response->set_deleted(true);
          return absl::OkStatus();
        });
  }

 private:
  // Whether enough nodes have said so.
  absl::StatusOr<bool> Note(const v1::ReportWrongDifferenceRequest& request) {
    const NodeIdentity node = FromProto(request.node());
    const std::string& difference = request.artifact_id();
    TC_ASSIGN_OR_RETURN(
        const std::string name, coordinator_.WithDirectory([&](const Directory& directory,
                                                               SteadyTime) -> absl::StatusOr<std::string> {
          TC_RETURN_IF_ERROR(directory.membership().CheckIdentity(node));
          TC_RETURN_IF_ERROR(
              directory.catalog().PrepareDeleteDifference(difference, absl::UnixEpoch()).status());
          return directory.membership().Find(node.node_id)->facts.name;
        }));
    absl::MutexLock lock(&mutex_);
    std::set<std::string>& nodes = reports_[difference];
    // By name: a node may come back with another id, and its name is its certificate's.
    nodes.insert(name);
    const size_t count = nodes.size();
    LOG(WARNING) << "node " << name << " reports that difference " << difference << " makes wrong bytes; "
                 << count << (count == 1 ? " node has" : " nodes have")
                 << " reported this, and the global store deletes the difference after " << kEnoughNodes
                 << " nodes";
    if (reports_.size() > kMaxReported) reports_.erase(reports_.begin());
    return count >= kEnoughNodes;
  }

  // The reports are forgotten only after the deletion is durable. Where it fails, the next report tries
  // again.
  absl::Status Delete(const std::string& difference) {
    TC_RETURN_IF_ERROR(coordinator_
                           .Mutate("",
                                   [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
                                     Change change;
                                     TC_ASSIGN_OR_RETURN(
                                         change.facts,
                                         directory.catalog().PrepareDeleteDifference(difference, now));
                                     return change;
                                   })
                           .status());
    absl::MutexLock lock(&mutex_);
    reports_.erase(difference);
    return absl::OkStatus();
  }

  Coordinator& coordinator_;
  rpc::AdmissionQueue& admission_;
  absl::Mutex mutex_;
  // Names of nodes, by difference.
  absl::btree_map<std::string, std::set<std::string>> reports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDifferencesService(Coordinator* coordinator,
                                                      rpc::AdmissionQueue* admission) {
  return std::make_unique<DifferencesService>(coordinator, admission);
}

}  // namespace tensorcast::global_store
