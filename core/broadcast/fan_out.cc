#include "core/broadcast/fan_out.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/layout.h"
#include "core/broadcast/unsent_chunks.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"

namespace tensorcast {
namespace {

// The min number of receivers: for one alone a copy is as good.
constexpr size_t kMinReceivers = 2;
// Longer than requests of the same time are apart until they have memory; much less than a copy takes.
constexpr absl::Duration kMoment = absl::Milliseconds(500);

}  // namespace

// One group. Its members share it, and `forming_` while it forms. Its thread runs while it broadcasts. The
// state goes kForming, then kDissolved or kBroadcasting (both in EndForming), then kOver (at the end of Run).
struct FanOut::Group {
  explicit Group(std::shared_ptr<ReplicaLease> replica) : root(std::move(replica)), unsent(root.get()) {}
  // The last member to leave has seen its end.
  ~Group() {
    if (thread.joinable()) thread.join();
  }

  const ImageLayout& layout() const { return root->manifest()->layout(); }

  const std::shared_ptr<ReplicaLease> root;
  // The owner's mutex guards these; once it is not forming any more, the members stay as they are.
  std::vector<BroadcastReceiver> receivers;
  std::vector<std::shared_ptr<Availability>> arrived;  // of each
  size_t expected = 0;
  State state = State::kForming;
  UnsentChunks unsent;  // its own thread's
  // Last: it uses the rest.
  std::thread thread;
};

// Stop ends the thread's wait for more chunks. Then the broadcaster may still write to the member's memory,
// so this waits until Run has said that all is over.
void FanOut::Leave(Group& group) {
  absl::MutexLock lock(&mutex_);
  group.unsent.Stop();
  const auto over = [&group] { return group.state == State::kOver; };
  mutex_.Await(absl::Condition(&over));
}

// Two waits, each with an end: AwaitGpuReceivers until the table knows enough ingests that may take part,
// then the group until all of them have joined. The second needs memory, so an ingest that waits for space
// holds the others up for kMoment at most.
std::optional<BroadcastMember> FanOut::Join(const RequestContext& context, std::shared_ptr<ReplicaLease> root,
                                            const BroadcastReceiver& receiver) {
  if (broadcaster_ == nullptr || !broadcaster_->available()) return std::nullopt;
  // Nothing is lost by waiting for others while the root fills.
  RequestContext moment = context;
  const absl::Duration wait = root->availability() == nullptr ? absl::ZeroDuration() : kMoment;
  moment.deadline = std::min(context.deadline, SteadyNow() + wait);
  const size_t expected = table_->AwaitGpuReceivers(root->replica_id(), kMinReceivers, moment);
  if (expected < kMinReceivers) return std::nullopt;
  const ImageLayout& layout = root->manifest()->layout();
  const auto arrived = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  // To take and release the mutex has the threads that wait look at their conditions again.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  std::shared_ptr<Group> group;
  {
    absl::MutexLock lock(&mutex_);
    group = FindForming(*root);
    if (group == nullptr) {
      group = std::make_shared<Group>(std::move(root));
      forming_.push_back(group);
    }
    group->receivers.push_back(receiver);
    group->arrived.push_back(arrived);
    group->expected = expected;
    const auto formed = [&] {
      return group->state != State::kForming || group->receivers.size() >= group->expected ||
             context.cancellation.IsCancelled();
    };
    // A member that is expected may fail before it joins, so this wait has an end, too.
    const SteadyTime until = std::min(context.deadline, SteadyNow() + kMoment);
    mutex_.AwaitWithTimeout(absl::Condition(&formed), TimeLeft(until));
    // The first thread that finds the group whole, or the time over, decides for all.
    if (group->state == State::kForming) EndForming(group);
    if (group->state == State::kDissolved) return std::nullopt;
  }
  const ReplicaLease& from = *group->root;
  BroadcastMember member;
  member.source.lane = kNcclLane;
  member.source.name = from.location().ToString();
  member.source.made_by = from.made_by();
  member.source.replica_id = from.replica_id();
  member.arrived = arrived;
  // It owns nothing: its deleter leaves the group, and holds the group until then.
  member.membership = std::shared_ptr<void>(group.get(), [this, group](void*) { Leave(*group); });
  return member;
}

std::shared_ptr<FanOut::Group> FanOut::FindForming(const ReplicaLease& root) {
  for (const std::shared_ptr<Group>& group : forming_) {
    if (group->root->replica_id() == root.replica_id()) return group;
  }
  return nullptr;
}

// Without a thread the group dissolves, and its members copy.
void FanOut::EndForming(const std::shared_ptr<Group>& group) {
  forming_.remove(group);
  if (group->receivers.size() < kMinReceivers) {
    group->state = State::kDissolved;
    return;
  }
  group->state = State::kBroadcasting;
  try {
    // A plain pointer, since the group joins its thread before it goes.
    group->thread = std::thread([this, members = group.get()] { Run(*members); });
  } catch (const std::system_error& error) {
    LOG(WARNING) << "broadcast " << group->root->manifest()->id() << " to " << group->receivers.size()
                 << " GPUs: no thread can be started (" << error.what()
                 << "), so each GPU copies the artifact separately; raise the limit of threads (`ulimit -u`)";
    group->state = State::kDissolved;
  }
}

void FanOut::Run(Group& group) {
  std::vector<otel::SpanLink> links;
  links.push_back({.context = group.root->made_by()});
  for (const BroadcastReceiver& receiver : group.receivers) links.push_back({.context = receiver.ingest});
  otel::Span span("Nccl/Broadcast", group.receivers.front().ingest,
                  {{otel::attr::kArtifactId, group.root->manifest()->id()},
                   {otel::attr::kSizeBytes, group.layout().image_bytes},
                   {otel::attr::kLane, kNcclLane}},
                  {.links = links});
  // By the time that any member is told of the end, the broadcaster has let go of the memory.
  const absl::Status status =
      span.Record(Annotate(Broadcast(group), absl::StrCat("broadcast ", group.root->manifest()->id())));
  span.End();
  otel::metrics::kNcclBroadcasts.Add(1, {status.ok() ? "ok" : "failed"});
  LOG_IF(WARNING, !status.ok()) << "send from " << group.root->location().ToString() << " to "
                                << group.receivers.size()
                                << " GPUs: the broadcast failed, and the GPUs copy the missing chunks: "
                                << status;
  for (const std::shared_ptr<Availability>& arrived : group.arrived) arrived->End(status);
  // Last: from now on the members may leave, and the last one waits for this thread.
  absl::MutexLock lock(&mutex_);
  group.state = State::kOver;
}

// Runs on the group's thread, without the lock. Each round broadcasts what the root got since the last one;
// the members see the chunks through their availability, and verify them in their own ingests meanwhile.
absl::Status FanOut::Broadcast(Group& group) {
  std::vector<DevicePtr> allocations = {group.root->memory().device};
  for (const BroadcastReceiver& receiver : group.receivers) allocations.push_back(receiver.memory);
  // The root's memory comes first: the broadcaster sends from the first allocation to the others.
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<BroadcastGroup> broadcast, broadcaster_->Open(allocations));
  while (!group.unsent.empty()) {
    TC_ASSIGN_OR_RETURN(const std::vector<uint32_t> chunks, group.unsent.Take(SteadyTime::InfiniteFuture()));
    const std::vector<ByteRange> ranges = RangesOf(group.layout(), chunks);
    TC_RETURN_IF_ERROR(broadcast->Broadcast(ranges));
    uint64_t bytes = 0;
    for (const ByteRange& range : ranges) bytes += range.bytes;
    otel::metrics::kNcclBroadcastBytes.Add(bytes * group.receivers.size());
    // It arrived and is not verified: each receiver digests its own memory.
    for (const uint32_t chunk : chunks) {
      for (const std::shared_ptr<Availability>& arrived : group.arrived) arrived->Add(chunk);
    }
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
