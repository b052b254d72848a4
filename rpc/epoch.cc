#include "rpc/epoch.h"

#include <grpcpp/client_context.h>

#include "absl/log/log.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tensorcast::rpc {
namespace {

constexpr size_t kClusterDigits = 16;

}  // namespace

std::string Epoch::ToText() const { return absl::StrFormat("%016x-%u", cluster, number); }

std::optional<Epoch> ParseEpoch(std::string_view text) {
  Epoch epoch;
  const bool parsed = text.size() > kClusterDigits &&
                      absl::SimpleHexAtoi(text.substr(0, kClusterDigits), &epoch.cluster) &&
                      absl::SimpleAtoi(text.substr(kClusterDigits + 1), &epoch.number);
  // One way to write each, no signs, blanks or zeros in front.
  if (!parsed || epoch.ToText() != text) return std::nullopt;
  return epoch;
}

absl::Status EpochFence::Check(const grpc::ClientContext& call) {
  const auto& metadata = call.GetServerInitialMetadata();
  const auto said = metadata.find(kEpochKey);
  // A server without an epoch sends none.
  if (said == metadata.end()) return absl::OkStatus();
  const std::optional<Epoch> epoch = ParseEpoch(std::string_view(said->second.data(), said->second.size()));
  if (!epoch.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("read the answer of ", call.peer(),
                     ": the epoch in the answer is malformed; upgrade the older of client and server"));
  }
  return Check(*epoch, call.peer());
}

// A lower number is a leader that has been replaced and may not know it. Numbers of another cluster cannot
// be compared with it, so that one is believed, and its numbers count from then on.
absl::Status EpochFence::Check(const Epoch& epoch, std::string_view server) {
  absl::MutexLock lock(&mutex_);
  if (latest_.has_value() && latest_->cluster == epoch.cluster && epoch.number < latest_->number) {
    return absl::UnavailableError(absl::StrCat("read the answer of ", server, ": the answer has epoch ",
                                               epoch.number, ", but a newer leader with epoch ",
                                               latest_->number,
                                               " has replaced that global store; call the newer leader, or, "
                                               "if etcd was restored from a snapshot, restart this process"));
  }
  LOG_IF(WARNING, latest_.has_value() && latest_->cluster != epoch.cluster)
      << "The global store at " << server << " is of cluster " << epoch.ToText()
      << ", and the previous one was of cluster " << latest_->ToText()
      << "; this process now follows the new cluster; if that is wrong, correct daemon.global_store";
  // An epoch that is equal or higher is remembered, so the fence only ever rises within a cluster.
  latest_ = epoch;
  return absl::OkStatus();
}

}  // namespace tensorcast::rpc
