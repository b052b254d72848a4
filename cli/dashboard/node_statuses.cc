#include "cli/dashboard/node_statuses.h"

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/request_context.h"
#include "base/status.h"

namespace tensorcast::dashboard {
namespace {

constexpr size_t kAskers = 16;
constexpr size_t kMaxEntries = 4 * kMaxAskedNodes;  // connections and answers that are kept

// The time is this process's own: the clocks of nodes may differ, and only differences of two readings count.
NodeCounters CountersOf(const v1::GetStatusResponse& status) {
  NodeCounters counters;
  counters.at = SteadyNow();
  for (const v1::TransferReport& report : status.running_transfers()) {
    counters.transfer_bytes[report.transfer_id()] = report.bytes();
  }
  for (const v1::LaneTotal& lane : status.lanes()) {
    counters.received += lane.bytes_received();
    counters.served += lane.bytes_served();
  }
  return counters;
}

}  // namespace

std::shared_ptr<NodeStatuses::Entry> NodeStatuses::EntryOf(const std::string& node_id) {
  const absl::MutexLock lock(&mutex_);
  std::shared_ptr<Entry>& entry = entries_[node_id];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  // The entry is shared, as one that goes below may still be in use.
  const std::shared_ptr<Entry> found = entry;
  // A cluster that is larger than this is looked at by parts; what was looked at before connects again.
  if (entries_.size() > kMaxEntries) {
    std::erase_if(entries_, [&](const auto& one) { return one.second != found; });
  }
  return found;
}

void NodeStatuses::SetOwn(const std::string& node_id, std::shared_ptr<client::AdminClient> client) {
  const std::shared_ptr<Entry> entry = EntryOf(node_id);
  const absl::MutexLock lock(&entry->mutex);
  entry->client = std::move(client);
  entry->own = true;
}

absl::StatusOr<std::shared_ptr<client::AdminClient>> NodeStatuses::ConnectTo(Entry& entry,
                                                                             const v1::Node& node) {
  {
    const absl::MutexLock lock(&entry.mutex);
    // A node that comes back may have another address.
    if (entry.client != nullptr && (entry.own || entry.address == node.grpc_address())) return entry.client;
  }
  // The lock is not held here: connecting to a node that is away takes a timeout.
  TC_ASSIGN_OR_RETURN(client::ClientOptions options, options_());
  options.daemon = node.grpc_address();
  options.connect_timeout = kNodeTimeout;
  TC_ASSIGN_OR_RETURN(std::shared_ptr<client::AdminClient> client, client::AdminClient::Connect(options));
  const absl::MutexLock lock(&entry.mutex);
  entry.client = client;
  entry.address = node.grpc_address();
  entry.own = false;
  return client;
}

absl::StatusOr<std::shared_ptr<client::AdminClient>> NodeStatuses::ClientOf(const v1::Node& node) {
  const std::shared_ptr<Entry> entry = EntryOf(node.node_id());
  return ConnectTo(*entry, node);
}

// `Cached` lets one thread at a time call this for an entry, so `last` is always from the previous answer.
absl::StatusOr<NodeStatus> NodeStatuses::Fetch(Entry& entry, const v1::Node& node) {
  absl::StatusOr<v1::GetStatusResponse> answer = [&]() -> absl::StatusOr<v1::GetStatusResponse> {
    TC_ASSIGN_OR_RETURN(const auto client, ConnectTo(entry, node));
    return client->GetStatus(RequestContext::Background(kNodeTimeout));
  }();
  const absl::MutexLock lock(&entry.mutex);
  if (!answer.ok()) {
    entry.client = nullptr;  // the next poll connects again
    entry.own = false;
    // A rate needs two answers that follow each other.
    entry.last = std::nullopt;
    return answer.status();
  }
  NodeStatus status;
  status.counters = CountersOf(*answer);
  status.status = *std::move(answer);
  status.previous = std::exchange(entry.last, status.counters);
  return status;
}

std::vector<Cached<NodeStatus>::Value> NodeStatuses::Ask(std::span<const v1::Node> nodes) {
  std::vector<Cached<NodeStatus>::Value> answers(nodes.size(), absl::UnknownError("not asked"));
  // There is one round at a time, so that kAskers bounds the questions of all views together.
  {
    const absl::MutexLock lock(&mutex_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !asking_; };
    mutex_.Await(absl::Condition(&free));
    asking_ = true;
  }
  // A few at a time, so that those that do not answer cost one timeout together, not one each.
  ForEachInParallel(nodes.size(), kAskers, [&](size_t i) {
    const std::shared_ptr<Entry> entry = EntryOf(nodes[i].node_id());
    answers[i] = entry->status.Get([&] { return Fetch(*entry, nodes[i]); });
  });
  const absl::MutexLock lock(&mutex_);
  asking_ = false;
  return answers;
}

}  // namespace tensorcast::dashboard
