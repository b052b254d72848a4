#include "rpc/failure_log.h"

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "otel/api/span.h"

namespace tensorcast::rpc {
namespace {

constexpr int kLinesPerSecond = 100;
constexpr size_t kMaxMessageBytes = 1024;

// Counts the lines of one kind in each second.
class Flood {
 public:
  // Whether one more line may be written; `*left_out`: how many were not, in the seconds before.
  bool Admit(uint64_t* left_out) {
    absl::MutexLock lock(&mutex_);
    const SteadyTime now = SteadyNow();
    if (now - since_ >= absl::Seconds(1)) {
      since_ = now;
      lines_ = 0;
    }
    if (++lines_ > kLinesPerSecond) {
      ++left_out_;
      return false;
    }
    *left_out = left_out_;
    left_out_ = 0;
    return true;
  }

 private:
  absl::Mutex mutex_;
  SteadyTime since_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

bool CancelledByItsCaller(const RequestContext& context, const absl::Status& status) {
  return absl::IsCancelled(status) && context.cancellation.IsCancelled() && SteadyNow() < context.deadline;
}

}  // namespace

bool IsServersFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status) {
  // Each has lines of its own: who asks for what is not there must not hide that a server fails.
  static auto* const of_servers = new Flood;
  static auto* const of_callers = new Flood;
  if (CancelledByItsCaller(context, status)) return;
  uint64_t left_out = 0;
  const bool servers_fault = IsServersFault(status.code());
  if (!(servers_fault ? of_servers : of_callers)->Admit(&left_out)) return;
  const otel::Scope scope(context);
  std::string line = absl::StrCat(method, " failed: ", absl::StatusCodeToString(status.code()), ": ",
                                  absl::Utf8SafeCEscape(status.message().substr(0, kMaxMessageBytes)));
  if (left_out > 0) absl::StrAppend(&line, " (", left_out, " other failures were not logged)");
  if (servers_fault) {
    LOG(WARNING) << line;
  } else {
    LOG(INFO) << line;
  }
}

}  // namespace tensorcast::rpc
