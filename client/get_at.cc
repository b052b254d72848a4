// Client::GetAt: one get a place, side by side; the daemon makes one copy over the network of them.
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "tensorcast/client.h"

namespace tensorcast::client {
namespace {

constexpr std::string_view kAllGpus = "gpu:all";

// Of this daemon's pools, in their order.
std::vector<std::string> GpusOf(const NodeStatus& status) {
  std::vector<std::string> gpus;
  for (const NodeStatus::Pool& pool : status.pools) {
    if (pool.location.kind == LocationKind::kGpu) gpus.push_back(pool.location.ToString());
  }
  return gpus;
}

absl::StatusOr<std::vector<std::string>> Expand(Client& client, const RequestContext& context,
                                                std::span<const std::string> locations) {
  std::vector<std::string> expanded;
  for (const std::string& location : locations) {
    if (location != kAllGpus) {
      expanded.push_back(location);
      continue;
    }
    TC_ASSIGN_OR_RETURN(const NodeStatus status, client.GetStatus(context));
    const std::vector<std::string> gpus = GpusOf(status);
    if (gpus.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("\"", kAllGpus, "\" is nowhere: the daemon ", status.name, " has no GPU"));
    }
    expanded.insert(expanded.end(), gpus.begin(), gpus.end());
  }
  return expanded;
}

// What went wrong before all else that then did. Thread-safe.
class FirstError {
 public:
  void Add(absl::Status error) {
    absl::MutexLock lock(&mutex_);
    if (error_.ok()) error_ = std::move(error);
  }
  absl::Status Get() {
    absl::MutexLock lock(&mutex_);
    return error_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Replica>>> Client::GetAt(const RequestContext& context,
                                                                    std::string_view artifact,
                                                                    std::span<const std::string> locations,
                                                                    const GetOptions& options) {
  TC_ASSIGN_OR_RETURN(const std::vector<std::string> places, Expand(*this, context, locations));
  if (places.empty()) return absl::InvalidArgumentError("get: no location is given; name one");
  RequestContext all = context;
  all.request_id.clear();  // each get is an operation of its own, in one trace
  if (!all.trace.IsValid()) all.trace = TraceContext::NewRoot();
  all.cancellation = Cancellation();
  const Cancellation::Registration with_caller =
      context.cancellation.OnCancel([cancellation = all.cancellation] { cancellation.Cancel(); });
  FirstError failed;
  std::vector<std::unique_ptr<Replica>> replicas(places.size());
  const auto get = [&](size_t i) {
    GetOptions here = options;
    here.location = places[i];
    absl::StatusOr<std::unique_ptr<Replica>> replica = Get(all, artifact, here);
    if (replica.ok()) {
      replicas[i] = *std::move(replica);
    } else {
      failed.Add(Annotate(replica.status(), absl::StrCat("at ", places[i])));
      all.cancellation.Cancel();
    }
  };
  {
    // All or none: the first error cancels the others. One of the gets runs on the caller's thread.
    std::vector<std::jthread> threads;
    try {
      for (size_t i = 1; i < places.size(); ++i) threads.emplace_back(get, i);
    } catch (const std::system_error& error) {
      failed.Add(absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for each of ", places.size(), " gets: ", error.what())));
      all.cancellation.Cancel();
    }
    get(0);
  }
  TC_RETURN_IF_ERROR(failed.Get());
  return replicas;
}

}  // namespace tensorcast::client
