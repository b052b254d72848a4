#include "daemon/service/check_origin.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/sources/own_sources.h"

namespace tensorcast::daemon {
namespace {

constexpr int kMostAtOnce = 8;

// Counts a check in and, when it ends, out.
class RunningCheck {
 public:
  explicit RunningCheck(std::atomic<int>* running) : running_(*running), others_(running_.fetch_add(1)) {}
  ~RunningCheck() { running_.fetch_sub(1); }
  RunningCheck(const RunningCheck&) = delete;
  RunningCheck& operator=(const RunningCheck&) = delete;
  int others() const { return others_; }

 private:
  std::atomic<int>& running_;
  const int others_;
};

}  // namespace

absl::Status CheckOrigin(const NodeParts& parts, const v1::CheckOriginRequest& request,
                         v1::CheckOriginResponse* response) {
  if (request.origin().node_id() != parts.node_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("the origin is on node ", request.origin().node_id(), ", this is ", parts.node_id));
  }
  const RunningCheck running(&parts.origin_checks);
  if (running.others() >= kMostAtOnce) {
    return absl::ResourceExhaustedError(absl::StrCat(
        running.others(), " checks of imported files are under way: does their disk still answer?"));
  }
  const absl::Status looked = CheckOriginFiles(parts.import_roots, request.origin());
  if (!looked.ok() && !IsAboutOriginFiles(looked)) {
    return looked;
  }
  response->set_intact(looked.ok());
  response->set_reason(std::string(looked.message()));
  return absl::OkStatus();
}

}  // namespace tensorcast::daemon
